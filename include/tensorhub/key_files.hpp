#pragma once
/// \file key_files.hpp
/// Keys and allow-lists in files (security.hpp defines them).
///
///     server.secret     mode 0600      server.public     mode 0644        clients.allow    mode 0644
///       public <key>                     <key>                              # a comment
///       secret <key>                                                        <public key> [name] [rules]
///                                                                           # 1 keys
///
/// Rules are `models=` and `replicas=`, each with patterns, and `may=` with rights (types/client_rules.hpp),
/// with commas between. A key has one line, and a line each rule once:
///
///     <public key> trainer  models=policy-* replicas=trainer-* may=publish,serve,retain,replace
///     <public key> rollouts models=policy-* replicas=rollout-* may=read,serve
///     <public key> spot     models=policy-* may=read
///     <public key> oncall   may=look,evict
///
/// The last line of a list may say how many keys it has: a list that is read while it is being written is
/// refused then.
///
/// A comment is a line that begins with "# ": a key may begin with "#", but contains no space. Files larger
/// than the limits below are refused. A secret file that other users may read is refused, as ssh does, and so
/// is any of these files that they may write. No function overwrites an existing file.
///
/// The functions throw `system_failed` for files that cannot be read or written, and `invalid_argument` for
/// wrong contents. The error always names the file, and never quotes a secret file.

#include <cstddef>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/security.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace limits {
inline constexpr std::size_t key_file_bytes = 4096;
inline constexpr std::size_t allow_list_bytes = 4u << 20;  ///< about 60,000 keys with names
}  // namespace limits

/// Writes `<folder>/<name>.secret` (mode 0600) and `<folder>/<name>.public`, both or none; creates the folder
/// (mode 0700) if it does not exist, and refuses one that others may write to.
void write_curve_keys(const std::string& folder, const std::string& name, const curve_key_pair& keys);

/// Reads a `.secret` file.
[[nodiscard]] curve_key_pair read_curve_keys(const std::string& file);

/// Reads a `.public` file.
[[nodiscard]] std::string read_public_key(const std::string& file);

/// The first line of a file that its owner alone can read: at most 1,024 bytes, not empty.
[[nodiscard]] std::string read_password(const std::string& file);

/// Reads a file with one line per client. `is_counted`: whether its last line says how many there are.
[[nodiscard]] client_allow_list read_allow_list(const std::string& file, bool* is_counted = nullptr);

/// With its number of keys.
void write_allow_list(const std::string& file, const client_allow_list& allowed);

namespace key_files_detail {

/// Adds what a line of an allow-list says, which is no comment. Throws `invalid_argument` if it begins with
/// no key, or with one that is there already.
void allow_line(client_allow_list& allowed, std::string_view line);

/// What a file with this text says; `file` is its name for the errors. A target of tests/fuzz.
[[nodiscard]] curve_key_pair key_pair_in(std::string_view text, const std::string& file);
[[nodiscard]] std::string public_key_in(std::string_view text, const std::string& file);
[[nodiscard]] client_allow_list allow_list_in(std::string_view text, const std::string& file,
                                              bool* is_counted);
[[nodiscard]] std::string text_of(const client_allow_list& allowed, const std::string& file);

}  // namespace key_files_detail

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/key_files.ipp"
#endif
