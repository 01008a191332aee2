#pragma once
/// \file error.hpp
/// The only exception of the control path, and the error codes, which control messages carry too.
///
/// The data path never throws; it reports `completion_status` (types/completion.hpp). The sentence of an
/// error says what the caller can do about it; `error::context()` holds the facts of the sentence for
/// programs.
///
/// Thread safety: values without shared state.

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The kinds of errors. The numbers are part of the control protocol: append, never renumber.
enum class errc : std::uint16_t {
  ok = 0,
  invalid_argument = 1,   ///< the call itself is wrong: null memory, overlap, duplicate name, bad option
  limit_exceeded = 2,     ///< a size is over its bound (config.hpp)
  layout_mismatch = 3,    ///< the tensors differ from the model's layout
  policy_mismatch = 4,    ///< this client's policies differ from the server's, or one there breaks its rules
  protocol_mismatch = 5,  ///< the peer uses another protocol or is not a TensorHub process
  version_conflict = 6,   ///< the version is not higher than the last one, or was published with other bytes
  not_found = 7,          ///< there is no such model or version, and waiting cannot help
  unavailable = 8,        ///< the version existed and no worker holds it any more
  timed_out = 9,          ///< a deadline passed; the sentence says what the call waited for
  busy = 10,              ///< another operation of the worker runs
  torn = 11,              ///< this replica's in-place update failed; the next update repairs it
  group_failed = 12,      ///< another shard of the replica failed, disagreed or did not arrive
  contract_broken = 13,   ///< a source changed bytes while they were published
  corrupt = 14,           ///< bytes do not match their digest
  source_lost = 15,       ///< connection to the source broke
  disconnected = 16,  ///< no reference server answers, or it had declared this worker dead, which joins again
  replaced = 17,      ///< a newer process has this worker's place, or an operator has evicted it
  cancelled = 18,     ///< the caller cancelled the operation
  transport_failed = 19,  ///< registration, listening or connecting failed
  system_failed = 20,     ///< an operating-system call failed
  refused = 21,           ///< the other side rejects this process: its key is unknown or revoked
  still_published = 22,   ///< the worker's own version is published: call unpublish() first
};

[[nodiscard]] std::string_view to_string(errc code) noexcept;

/// The same call may succeed later, although its caller changes nothing: another source, version or server
/// may be there then, or another thread has ended what was `busy`. Other errors need a change first.
[[nodiscard]] bool retryable(errc code) noexcept;

/// The subject of an error. Empty fields are unknown or do not apply.
struct error_context {
  std::string model;
  std::string replica;
  std::optional<std::uint32_t> shard;
  std::optional<std::uint64_t> version;
  std::string peer;  ///< the other side, as text: a source, a reader or the server
  std::optional<std::uint64_t> chunk;
};

/// Thrown by every control-path function. `what()` is `<sentence> [code; model m; version v; ...]`.
class error : public std::runtime_error {
 public:
  error(errc code, std::string_view sentence, error_context context = {});

  [[nodiscard]] errc code() const noexcept { return code_; }
  [[nodiscard]] bool retryable() const noexcept;
  [[nodiscard]] const std::string& sentence() const noexcept { return sentence_; }
  [[nodiscard]] const error_context& context() const noexcept { return context_; }

 private:
  errc code_;
  std::string sentence_;
  error_context context_;
};

/// A transport cannot listen at the address and port that its options name.
class listen_error : public error {
 public:
  using error::error;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/error.ipp"
#endif
