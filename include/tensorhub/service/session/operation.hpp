#pragma once
/// \file operation.hpp
/// The one publish, unpublish or update that a session is in the middle of.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// What is being waited for.
enum class step : std::uint8_t {
  publishing,    ///< the server's answer
  unpublishing,  ///< own readers
  waiting,       ///< update: a version and a source
  draining,      ///< update: own readers of what was held before
  pulling,       ///< update: bytes
  stopping,      ///< update: the shell's last reads, before the failure is reported
  finishing,     ///< update: the other shards of the replica
  failing        ///< update: the server's answer to the report of a failure
};

struct running {
  session_ticket ticket = 0;
  step at = step::waiting;
  time_point deadline = time_point::never();
  time_point drain_deadline = time_point::never();
  version_selector selector{};
  messages::reference target{};                   ///< publish: what is being published
  version_number version{};                       ///< update: what is being read
  digest128 root{};                               ///< update: of that
  std::vector<messages::assignment> sources{};    ///< update: whom to read
  std::uint64_t ordinal = 0;                      ///< update: of this reader among all
  std::optional<remote_region> control{};         ///< update: shown while it is being received
  std::uint64_t announced = 0;                    ///< update: epoch at which it will be shown; zero: not told
  bool told = false;                              ///< update: the server knows how to read what is shown
  std::optional<messages::reference> previous{};  ///< update: what was held before
  std::optional<messages::status> abort{};        ///< update: why it is being stopped
  messages::status failure{};                     ///< update: what the call will end with

  /// The shell has a transfer, and will report its end.
  [[nodiscard]] bool is_pulling() const noexcept { return at == step::pulling || at == step::stopping; }
  /// The server has told which version, and this shard has not failed.
  [[nodiscard]] bool is_decided() const noexcept { return version && at != step::failing; }
  [[nodiscard]] lease_id first_lease() const noexcept {
    return sources.empty() ? lease_id{} : sources.front().lease;
  }
  /// For sentences.
  [[nodiscard]] std::string source_names() const;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/operation.ipp"
#endif
