#pragma once
/// \file operation.hpp
/// The publish, unpublish or update that a session is executing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

/// What a running call waits for.
enum class step : std::uint8_t {
  publishing,    ///< publish: the server's answer
  unpublishing,  ///< unpublish: the end of this worker's readers
  waiting,       ///< update: a version and a source
  draining,      ///< update: the end of this worker's readers of the previous version
  revoking,      ///< update: the end of `cut_off_all`, after which the bytes may change
  pulling,       ///< update: the bytes
  stopping,      ///< update: the end of the shell's last reads, before the failure is reported
  finishing,     ///< update: the answer to its report, which the other shards delay
  failing        ///< update: the server's answer to the report of a failure
};

/// An update by a copy from this machine is no call of the replica: the server decides nothing about it.
enum class local_copy : std::uint8_t {
  no,
  over_any,      ///< what is overwritten is not retained
  over_retained  ///< what is overwritten may be the last copy of a retained version
};

/// The sources of an update.
struct known_sources {
  std::vector<messages::assignment> current{};
  /// No longer, or never: reads of these may be outstanding, and messages that come late may name them.
  std::vector<lease_id> given_up{};

  /// Which one is read under this lease, now or before.
  [[nodiscard]] bool contains(lease_id lease) const {
    return detail::contains(given_up, lease) ||
           detail::any_of(current, [&](const messages::assignment& each) { return each.lease == lease; });
  }
  /// False: it is none of the current ones.
  [[nodiscard]] bool give_up(lease_id lease);
};

struct running {
  session_ticket ticket = 0;
  step at = step::waiting;
  time_point deadline = time_point::never();
  time_point drain_deadline = time_point::never();
  /// The call ends by then, whatever it waits for; never: with the answer to its last report, or two retry
  /// intervals later.
  time_point latest = time_point::never();
  bool lost = false;    ///< update: what it overwrites was the last reliable copy of a retained version
  bool forced = false;  ///< unpublish: the deadline came, and the remaining readers were cut off
  local_copy copies = local_copy::no;
  version_selector selector{};
  messages::reference target{};                   ///< publish, unpublish: the reference that it is about
  version_number version{};                       ///< update: the version that is being read
  std::optional<digest128> root{};                ///< update: of that version; empty: it is open
  known_sources sources{};                        ///< update
  std::uint64_t ordinal = 0;                      ///< update: number of this reader among all readers
  std::optional<remote_region> control{};         ///< update: the control block that is shown meanwhile
  std::uint64_t announced = 0;                    ///< update: the epoch announced for it; zero: none
  bool told = false;                              ///< update: the server knows that this worker can be read
  std::optional<messages::reference> previous{};  ///< update: the version held before
  std::optional<messages::status> abort{};        ///< update: the reason why it is being stopped
  messages::status failure{};                     ///< update, publish: how the call will end

  /// The shell runs a transfer and will report its end.
  [[nodiscard]] bool is_pulling() const noexcept { return at == step::pulling || at == step::stopping; }
  [[nodiscard]] bool is_local() const noexcept { return copies != local_copy::no; }
  /// It reads what the server names, or will when its own readers are gone.
  [[nodiscard]] bool takes_sources() const noexcept {
    const bool will_read = at == step::draining || at == step::revoking;
    return !is_local() && (will_read || (at == step::pulling && !abort));
  }
  /// The server has announced the version, and this shard has not failed.
  [[nodiscard]] bool is_decided() const noexcept { return version && at != step::failing && !is_local(); }
  [[nodiscard]] lease_id first_lease() const noexcept {
    return sources.current.empty() ? lease_id{} : sources.current.front().lease;
  }
  /// The sources as text, for sentences.
  [[nodiscard]] std::string source_names() const;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/session/impl/operation.ipp"
#endif
