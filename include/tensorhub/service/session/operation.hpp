#pragma once
/// \file operation.hpp
/// The one publish, unpublish or update that a session is in the middle of.

#include <cstdint>
#include <optional>

#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::session_detail {

/// What is being waited for.
enum class step : std::uint8_t {
  publishing,    ///< the server's answer
  unpublishing,  ///< own readers
  waiting,       ///< update: a version and a source
  draining,      ///< update: own readers of what was held before
  pulling,       ///< update: bytes
  resourcing,    ///< update: another source, while the shell keeps what has arrived
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
  messages::assignment source{};                  ///< update: whom to read
  std::optional<messages::reference> previous{};  ///< update: what was held before
  std::optional<messages::status> abort{};        ///< update: why it is being stopped
  messages::status failure{};                     ///< update: what the call will end with

  /// The shell has a transfer, and will report its end.
  [[nodiscard]] bool is_pulling() const noexcept {
    return at == step::pulling || at == step::resourcing || at == step::stopping;
  }
};

}  // namespace tensorhub::session_detail
