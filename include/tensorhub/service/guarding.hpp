#pragma once
/// \file guarding.hpp
/// A worker's use of capabilities: its transport requires them if it supports them
/// (concepts/guarded_transport.hpp), and refused connections are logged. A transport without that support
/// accepts any client that knows its address; reading still needs the key of each region.
///
/// Thread safety: `refusal_watch` belongs to one thread at a time.

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/types/capability.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Makes the transport require capabilities of a new key, and returns that key for the reference server.
/// Empty:
/// this transport does not support capabilities.
template <transport T>
[[nodiscard]] std::string guard_by_capability(T& transport) {
  if constexpr (guarded_transport<T>) {
    std::string key = random_capability_key();
    transport.require_capability(std::as_bytes(std::span{key}));
    return key;
  } else {
    return {};
  }
}

/// Writes at most one log line a second about refused connections.
class refusal_watch {
 public:
  /// `count`: connections that the transport has refused since its start. `log`: may be empty.
  void look(std::uint64_t count, incarnation self, time_point now,
            const std::function<void(const log_line&)>& log) {
    if (count == said_ || now < next_) return;
    next_ = now + std::chrono::seconds{1};
    const std::uint64_t fresh = count - said_;
    said_ = count;
    if (!log) return;
    log_line line{log_level::warning,
                  "refused " + std::to_string(fresh) + " data connections without a valid capability (" +
                      std::to_string(count) +
                      " since the start): a client without a lease knows this address",
                  {}};
    line.about.worker = self;
    line.about.code = errc::refused;
    log(line);
  }

 private:
  std::uint64_t said_ = 0;
  time_point next_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
