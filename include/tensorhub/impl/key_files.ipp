#pragma once
/// \file key_files.ipp
/// Definitions of key_files.hpp.

#include "tensorhub/key_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/wipe.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace key_files_detail {

[[noreturn]] inline void fail(errc code, const std::string& file, const std::string& why) {
  throw error(code, "'" + file + "' " + why);
}

/// `secret`: refuses a file that users other than its owner can read.
[[nodiscard]] inline std::string read(const std::string& file, std::size_t limit_bytes, bool secret) {
  const detail::unique_fd opened{::open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!opened) fail(errc::system_failed, file, std::string{"cannot be opened: "} + std::strerror(errno));
  struct stat about {};
  if (::fstat(opened.get(), &about) != 0 || !S_ISREG(about.st_mode))
    fail(errc::system_failed, file, "is no regular file");
  if (secret && (about.st_mode & 077u) != 0)
    fail(errc::invalid_argument, file, "can be read by others: keys in it are no secret; chmod 600 it");
  if ((about.st_mode & 022u) != 0)
    fail(errc::invalid_argument, file, "can be written by others, who could let in anybody; chmod go-w it");
  // Read in one piece of memory: a text that grows would leave copies of a secret behind.
  std::string text(std::min<std::size_t>(static_cast<std::size_t>(about.st_size), limit_bytes) + 1, '\0');
  for (std::size_t have = 0;;) {
    const auto taken = ::read(opened.get(), text.data() + have, text.size() - have);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail(errc::system_failed, file, std::string{"cannot be read: "} + std::strerror(errno));
    have += static_cast<std::size_t>(taken);
    if (have > limit_bytes)
      fail(errc::limit_exceeded, file, "has more than " + std::to_string(limit_bytes) + " bytes");
    if (have == text.size()) fail(errc::system_failed, file, "grew while it was read: try again");
    if (taken > 0) continue;
    text.resize(have);
    return text;
  }
}

/// Who may write to a folder may put other keys into it, whatever the modes of its files.
inline void check_folder(const std::string& folder) {
  struct stat about {};
  if (::stat(folder.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
    fail(errc::system_failed, folder, "is no folder");
  if ((about.st_mode & 022u) != 0)
    fail(
        errc::invalid_argument, folder,
        "can be written by others, who could exchange the keys in it: chmod go-w it, or name another folder");
}

inline void write_new(const std::string& file, std::string_view text, mode_t mode) {
  const detail::unique_fd opened{
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode)};
  if (!opened && errno == EEXIST)
    fail(errc::system_failed, file, "is there already, and keys are not overwritten: move it away first");
  if (!opened) fail(errc::system_failed, file, std::string{"cannot be made: "} + std::strerror(errno));
  while (!text.empty()) {
    const auto written = ::write(opened.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string why = std::strerror(errno);
      ::unlink(
          file.c_str());  // half a file would be in the way of the next attempt, and half a secret remain
      fail(errc::system_failed, file, "cannot be written: " + why);
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Removes the first line from `text` and returns it without surrounding blanks.
[[nodiscard]] inline std::string_view take_line(std::string_view& text) noexcept {
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r' || line.back() == '\t'))
    line.remove_suffix(1);
  while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) line.remove_prefix(1);
  return line;
}
/// "# 3 keys" is 3.
[[nodiscard]] inline std::optional<std::size_t> count_in(std::string_view line) noexcept {
  if (!line.starts_with("# ") || !line.ends_with(" keys")) return std::nullopt;
  line = line.substr(2, line.size() - 7);
  std::size_t count = 0;
  const auto [end, failed] = std::from_chars(line.data(), line.data() + line.size(), count);
  return failed == std::errc{} && end == line.data() + line.size() ? std::optional{count} : std::nullopt;
}

[[nodiscard]] inline bool says_nothing(std::string_view line) noexcept {
  return line.empty() || line == "#" || line.starts_with("# ");
}

TENSORHUB_DECL curve_key_pair key_pair_in(std::string_view text, const std::string& file) {
  curve_key_pair keys;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.starts_with("public "))
      keys.public_key = line.substr(7);
    else if (line.starts_with("secret "))
      keys.secret_key = line.substr(7);
    else if (!says_nothing(line))
      fail(errc::invalid_argument, file,
           "is no file of a key pair (one ends in .secret): it has other lines than 'public <key>' and "
           "'secret <key>'");
  }
  security_detail::check_pair(keys, "the keys in '" + file + "'");
  return keys;
}

TENSORHUB_DECL std::string public_key_in(std::string_view text, const std::string& file) {
  while (!text.empty()) {
    std::string line{take_line(text)};
    if (is_curve_key(line)) return line;
    if (!says_nothing(line)) break;
  }
  fail(errc::invalid_argument, file, "has no public key in its first line (such a file ends in .public)");
}

TENSORHUB_DECL void allow_line(client_allow_list& allowed, std::string_view line) {
  std::string key{line.substr(0, line.find_first_of(" \t"))};
  if (!is_curve_key(key))
    throw error(errc::invalid_argument, "a line of an allow-list begins with no public key of 40 characters");
  if (allowed.contains(key))
    throw error(errc::invalid_argument,
                "an allow-list has a key for the second time: one line says all of a key");
  client_rules rules = client_rules_of(line.substr(key.size()));
  allowed.emplace(std::move(key), std::move(rules));
}

TENSORHUB_DECL client_allow_list allow_list_in(std::string_view text, const std::string& file,
                                               bool* is_counted) {
  client_allow_list out;
  std::optional<std::size_t> count;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = take_line(text);
    if (const auto said = count_in(line)) count = said;
    if (says_nothing(line)) continue;
    try {
      allow_line(out, line);
    } catch (const error& e) {
      fail(e.code(), file, "is wrong in line " + std::to_string(number) + ": " + e.sentence());
    }
  }
  if (count && *count != out.size())
    fail(errc::invalid_argument, file,
         "says that it has " + std::to_string(*count) + " keys, and has " + std::to_string(out.size()) +
             ": it was read while it was being written, or its last line was not kept up to date");
  if (is_counted != nullptr) *is_counted = count.has_value();
  return out;
}

TENSORHUB_DECL std::string text_of(const client_allow_list& allowed, const std::string& file) {
  std::string text = "# public key, name, rules (tensorhub/key_files.hpp)\n";
  for (const auto& [key, rules] : allowed) {
    const std::string entry = to_string(rules);
    if (!is_curve_key(key))
      fail(errc::invalid_argument, file,
           "is not written: '" + key.substr(0, 64) + "' is no public key of 40 characters");
    if (client_rules_of(entry) != rules)
      fail(errc::invalid_argument, file,
           "is not written: the rules of '" + rules.name.substr(0, 64) + "' cannot be written in one line");
    text.append(key).append(entry.empty() ? "" : " ").append(entry).append("\n");
  }
  text.append("# ").append(std::to_string(allowed.size())).append(" keys\n");
  return text;
}

}  // namespace key_files_detail

TENSORHUB_DECL void write_curve_keys(const std::string& folder, const std::string& name,
                                     const curve_key_pair& keys) {
  security_detail::check_pair(keys, "the keys to write");
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    key_files_detail::fail(errc::system_failed, folder,
                           std::string{"cannot be made: "} + std::strerror(errno));
  key_files_detail::check_folder(folder);
  const std::string path = folder.ends_with('/') ? folder + name : folder + "/" + name;
  std::string text = "public " + keys.public_key + "\nsecret " + keys.secret_key + "\n";
  const detail::wiped_at_end wiped{text};
  key_files_detail::write_new(path + ".secret", text, 0600);
  try {
    key_files_detail::write_new(path + ".public", keys.public_key + "\n", 0644);
  } catch (...) {  // nobody has the key yet: the pair is made again
    ::unlink((path + ".secret").c_str());
    throw;
  }
}

TENSORHUB_DECL curve_key_pair read_curve_keys(const std::string& file) {
  std::string text = key_files_detail::read(file, limits::key_file_bytes, true);
  const detail::wiped_at_end wiped{text};
  return key_files_detail::key_pair_in(text, file);
}

TENSORHUB_DECL std::string read_public_key(const std::string& file) {
  return key_files_detail::public_key_in(key_files_detail::read(file, limits::key_file_bytes, false), file);
}

TENSORHUB_DECL std::string read_password(const std::string& file) {
  std::string text = key_files_detail::read(file, 1024, true);
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  if (text.empty()) key_files_detail::fail(errc::invalid_argument, file, "has no password in its first line");
  return text;
}

TENSORHUB_DECL client_allow_list read_allow_list(const std::string& file, bool* is_counted) {
  const std::string text = key_files_detail::read(file, limits::allow_list_bytes, false);
  return key_files_detail::allow_list_in(text, file, is_counted);
}

TENSORHUB_DECL void write_allow_list(const std::string& file, const client_allow_list& allowed) {
  key_files_detail::write_new(file, key_files_detail::text_of(allowed, file), 0644);
}

}  // namespace tensorhub::inline TENSORHUB_MODE
