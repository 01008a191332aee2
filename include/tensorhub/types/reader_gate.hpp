#pragma once
/// \file reader_gate.hpp
/// Which readers a source accepts, and the sentences by which a refused reader learns the reason. All
/// transports with a handshake share them; each keeps its own messages and its own numbers on the wire.
///
/// Thread safety: a gate may be used from any thread; the functions are pure.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Reasons for a refusal that every transport knows.
enum class refusal {
  none,             ///< the reader is accepted
  other_protocol,   ///< the two processes speak different data protocols
  other_process,    ///< the reader wants an incarnation that this process is not
  changed_process,  ///< the source accepted the reader, but is not the incarnation that the reader wants
  cut_off,          ///< the source has cut this reader off
  no_capability,    ///< the source requires a capability, and the reader showed no valid one
  unknown,          ///< the source's answer has no known status
};

/// What both sides said of themselves.
struct handshake_facts {
  std::uint32_t source_protocol = 0;
  std::uint32_t own_protocol = 0;
  incarnation found;
  incarnation expected;
};

/// The reason as it follows the source's address: "has cut this process off: ...". Empty for `none`.
[[nodiscard]] std::string describe(refusal why, const handshake_facts& facts);

/// The number that stands for this reason in a transport's welcome.
template <typename Status>
[[nodiscard]] constexpr Status status_of(refusal why) noexcept {
  switch (why) {
    case refusal::none:
      return Status::accepted;
    case refusal::other_protocol:
      return Status::other_protocol;
    case refusal::no_capability:
      return Status::no_capability;
    case refusal::cut_off:
      return Status::refused;
    default:
      return Status::other_process;
  }
}

/// What a welcome says to a reader that wanted `expected`. A transport handles its own statuses first: here
/// they are unknown.
template <typename Welcome>
[[nodiscard]] refusal refusal_in(const Welcome& answer, incarnation expected) noexcept {
  using status = decltype(answer.status);
  switch (answer.status) {
    case status::accepted:
      return answer.source == expected.value ? refusal::none : refusal::changed_process;
    case status::other_protocol:
      return refusal::other_protocol;
    case status::other_process:
      return refusal::other_process;
    case status::refused:
      return refusal::cut_off;
    case status::no_capability:
      return refusal::no_capability;
    default:
      return refusal::unknown;
  }
}

/// The sentence to `refusal_in`. Empty: the reader is accepted.
template <typename Welcome>
[[nodiscard]] std::string why_refused(const Welcome& answer, std::uint32_t own_protocol,
                                      incarnation expected) {
  refusal why = refusal_in(answer, expected);
  if (why == refusal::none && answer.protocol != own_protocol) why = refusal::other_protocol;
  return describe(why, {answer.protocol, own_protocol, {answer.source}, expected});
}

/// The incarnations that a source is, its list of readers that it has cut off, and its capability check.
class reader_gate {
 public:
  explicit reader_gate(incarnation self) : own_{{self}} {}

  /// The incarnation as which the process speaks where nobody names another one: the oldest that it is. Zero
  /// if it is none.
  [[nodiscard]] incarnation self() const noexcept;
  /// The incarnation in which a reader that expects `expected` is answered: that one if the process is it.
  [[nodiscard]] incarnation self_for(incarnation expected) const noexcept;
  /// Readers that expect `self` are accepted too (concepts/shared_transport.hpp, as the next two).
  void admit(incarnation self);
  void rename(incarnation self, incarnation next) noexcept;
  void dismiss(incarnation self) noexcept;

  /// Refuses this reader from now on. If there is no memory to remember it, the gate refuses everybody.
  void cut_off(incarnation reader) noexcept;
  void refuse_everybody() noexcept;

  /// From now on a reader needs a capability made with this key. Throws `invalid_argument` for a key of
  /// another size.
  void require_capability(std::span<const std::byte> key);

  /// From now on `self`, if the process is it, lets in nobody with a capability of an earlier epoch.
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept;

  /// Connections refused for want of a valid capability.
  [[nodiscard]] std::uint64_t refused_connections() const noexcept { return refused_connections_.load(); }

  /// Whether a reader with this greeting is accepted by a source that speaks `protocol`.
  template <typename Hello>
  [[nodiscard]] refusal judge(const Hello& greeting, std::uint32_t protocol,
                              channel_binding binding = {}) noexcept {
    if (greeting.protocol != protocol) return refusal::other_protocol;
    return judge_reader({greeting.reader}, {greeting.source}, greeting.capability, binding);
  }
  [[nodiscard]] refusal judge_reader(incarnation reader, incarnation expected,
                                     std::span<const std::byte> capability, channel_binding binding) noexcept;
  [[nodiscard]] bool has_cut_off(incarnation reader) const noexcept;
  /// What it is told then, so that it knows whom it has reached.
  template <typename Hello>
  [[nodiscard]] source_proof proof_to(const Hello& greeting, channel_binding binding) const noexcept {
    const std::lock_guard lock{mutex_};
    return capabilities_.proof_to(greeting.capability, {greeting.reader}, {greeting.source}, binding);
  }

 private:
  /// What the process is, and the epoch before which its capabilities have expired.
  struct identity {
    incarnation self;
    std::uint64_t oldest_epoch = 0;
  };
  /// Null: the process is not it. Pre-condition: mutex_ is held.
  [[nodiscard]] identity* find(incarnation self) noexcept;

  mutable std::mutex mutex_;
  std::vector<identity> own_;  ///< guarded by mutex_, as the next three
  std::unordered_set<incarnation> cut_off_;
  bool refuses_everybody_ = false;
  capability_check capabilities_;
  std::atomic<std::uint64_t> refused_connections_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/reader_gate.ipp"
#endif
