#pragma once
/// \file session_orders.hpp
/// How a worker carries out what its session orders about the memory that readers see, and how it reports the
/// end of a transfer.
///
/// `Holder` is a data plane (worker/data_plane.hpp), or a simulated one: the simulator runs this code too.
///
/// Thread safety: the caller serialises all calls with those of the session.

#include <optional>
#include <span>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/incarnation_proof.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::worker_detail {

template <typename Holder>
void perform(Holder& holder, session&, time_point, const session_actions::raise_epoch& order) {
  holder.raise_epoch(order.epoch);
}
template <typename Holder>
void perform(Holder& holder, session&, time_point, const session_actions::restore& order) {
  holder.show_again(order.held.version, order.held.epoch);
}
template <typename Holder>
void perform(Holder& holder, session& core, time_point now, const session_actions::cut_off_reader& order) {
  holder.cut_off(order.reader);
  core.cut_off_done(now, order.reader);
}
template <typename Holder>
void perform(Holder& holder, session& core, time_point now, const session_actions::cut_off_all&) {
  holder.revoke_all();
  core.all_cut_off(now);
}

/// Of the exception that is being handled, whatever it is.
[[nodiscard]] inline messages::status status_of_exception(const std::string& what) {
  try {
    throw;
  } catch (const error& e) {
    return {e.code(), e.sentence()};
  } catch (...) {
    return {errc::system_failed, what + ": " + detail::exception_text()};
  }
}

/// How a transfer ended. No read is outstanding any more.
struct transfer_end {
  version_number version{};
  bool complete = false;
  bool intact = false;                   ///< no byte of the weights was written
  messages::status trouble{};            ///< of a transfer that is not complete
  std::span<const digest128> digests{};  ///< of one that is
};

template <typename Holder>
void report_end(Holder& holder, session& core, time_point now, const transfer_end& end) {
  messages::status trouble = end.trouble;
  if (end.complete) {
    try {
      holder.show(end.version, core.epoch(), end.digests);
      return core.pull_finished(now, holder.readable());
    } catch (...) {
      trouble = status_of_exception("what has arrived cannot be shown");
    }
  }
  holder.raise_epoch(core.epoch());  // the received chunks were shown to readers
  std::optional<readable_memory> kept;
  if (end.intact) {
    try {
      kept = holder.describe_held();
    } catch (...) {
      trouble.sentence +=
          "; " + status_of_exception("the version held before cannot be shown again").sentence;
    }
  }
  core.pull_failed(now, std::move(trouble), std::move(kept));
}

/// The session has ended because the server did not hear from it (`may_return`): its process goes on as
/// `next`, with the version that it holds, and joins again.
template <typename Holder>
void go_on_as(const proven_incarnation& next, Holder& holder, session& core, time_point now) {
  holder.renew(next.id);
  std::optional<readable_memory> memory;
  if (core.kept()) {
    try {
      memory = holder.describe_held();
      holder.show_again(core.kept()->version, core.epoch());
    } catch (...) {  // without keys nobody can read it: nothing is held
    }
  }
  core = core.successor(now, next, std::move(memory));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::worker_detail
