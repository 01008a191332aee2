#pragma once
/// \file state.hpp
/// What is inside a `worker` (worker.hpp), and what its calls share: the session's client, one operation at a
/// time, waiting for results, errors that name the worker.
///
/// Thread safety: as `worker`.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/call_turn.hpp"
#include "tensorhub/worker/cut_off_orders.hpp"
#include "tensorhub/worker/data_plane.hpp"
#include "tensorhub/worker/recorder.hpp"
#include "tensorhub/worker/results.hpp"
#include "tensorhub/worker/updates.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class offloads;

/// The layout is fixed and everything is registered: once, by the first call that needs it.
struct preparation {
  std::mutex mutex;
  std::atomic<bool> done = false;
};

struct worker_state {
  using client_type = client_shell<session>;

  static constexpr std::chrono::milliseconds answer_margin{2000};

  TENSORHUB_DECL worker_state(worker_options whose, worker_policies policies, worker_role as);
  TENSORHUB_DECL worker_state(worker_options whose, worker_policies policies, worker_role as,
                              const proven_incarnation& first);
  TENSORHUB_DECL ~worker_state();
  worker_state(const worker_state&) = delete;
  worker_state& operator=(const worker_state&) = delete;

  using steady_time = std::chrono::steady_clock::time_point;

  /// Throws `invalid_argument` if no version can ever be what the selector asks for.
  TENSORHUB_DECL static void require_possible(const version_selector& selector);

  /// One operation at a time: publish, unpublish, update and leave have the turn while they run. Throws
  /// `busy` if another one has it, and `invalid_argument` if the worker has left its model.
  [[nodiscard]] TENSORHUB_DECL held_turn take_turn();

  /// For calls that need not be one at a time. Throws `invalid_argument` if the worker has left its model.
  TENSORHUB_DECL void ensure_joined_beside(steady_time until = steady_time::max());
  /// Waits until then, and at most for the join time-out; several may do so at once. `asking`: whose
  /// cancellation ends it, if it has a handle.
  TENSORHUB_DECL void ensure_joined(steady_time until, update_state* asking = nullptr);
  TENSORHUB_DECL void prepare();
  /// Throws if this worker has left its model, or does so now.
  TENSORHUB_DECL void refuse_if_left() const;
  [[nodiscard]] TENSORHUB_DECL version_number held_version();
  /// What the server's list says of a worker that has not joined: asked in the background, and never waited
  /// for. Zero: nothing is known.
  [[nodiscard]] TENSORHUB_DECL version_number newest_listed();

  // ---- results and errors

  /// The session ends every call at its deadline, or when its keys are revoked; the margin only guards
  /// against a stuck control thread.
  [[nodiscard]] TENSORHUB_DECL session_result wait_for(session_ticket ticket,
                                                       std::chrono::milliseconds timeout);
  [[nodiscard]] TENSORHUB_DECL session_result checked(session_result result) const;
  /// One question and its answer.
  template <typename Start>
  session_result ask(std::chrono::milliseconds timeout, Start&& start) {
    timeout = detail::bounded(timeout);
    const session_ticket ticket =
        client.with([&](session& core, time_point now) { return start(core, now, now + timeout); });
    return checked(wait_for(ticket, timeout));
  }
  /// Runs `call`. Its errors come from parts that do not know whose they are: they are told on as this
  /// worker's, and as the version's, if there is one.
  template <typename Call>
  auto named(version_number version, Call&& call) {
    try {
      return std::forward<Call>(call)();
    } catch (const error& e) {
      throw failure(e.code(), e.sentence(), version, e.context());
    }
  }
  [[nodiscard]] TENSORHUB_DECL error failure(errc code, const std::string& sentence,
                                             version_number version = {},
                                             const error_context& known = {}) const;
  [[nodiscard]] TENSORHUB_DECL error failure(const messages::status& outcome, version_number version) const;
  /// A line of the log that names this worker.
  [[nodiscard]] TENSORHUB_DECL log_line line(log_level level, std::string text) const;

  const worker_options options;
  const worker_role role;
  /// Changes when the worker joins again after it was declared dead.
  std::atomic<incarnation> self;
  std::unique_ptr<data_plane> data;
  layout shape{};

  call_turn operating;
  preparation prepared;  ///< `shape` does not change any more
  std::atomic<bool> joined = false;
  std::atomic<bool> leaving = false;
  std::atomic<bool> has_left = false;
  std::atomic<std::uint64_t> newer = 0;  ///< the newest version, if it is newer than what is held

  steady_clock clock;
  worker_results results;
  worker_recorder counted;
  worker_updates updates{*this};
  std::unique_ptr<offloads> kept_for_others;  ///< closed before what it uses goes (~worker)
  cut_off_orders cut_offs{[this](incarnation reader) { cut_off(reader); }};
  bool server_is_silent = false;  ///< the log says so
  client_type client;             ///< last: its thread uses everything above

 private:
  [[nodiscard]] TENSORHUB_DECL session_options told_to_session(const worker_policies& policies,
                                                               digest128 proof) const;

  // ---- the session's actions (client thread or a caller's thread; the client's mutex is held)

  TENSORHUB_DECL void after_step(session& core);
  TENSORHUB_DECL void log_transport();
  /// One line when the server has become silent, and one when it answers again.
  TENSORHUB_DECL void log_silence(const session& core);
  /// The session has ended, and its process goes on as another incarnation.
  TENSORHUB_DECL void go_on(session& core);
  TENSORHUB_DECL void carry_out(session& core, session_action& action);
  TENSORHUB_DECL void perform(session& core, const session_actions::use_server& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::cut_off_reader& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::cut_off_all& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::offload& order);
  TENSORHUB_DECL void perform(session& core, const session_actions::drop& order);

  // ---- the thread of `cut_offs`

  TENSORHUB_DECL void cut_off(incarnation reader);
  /// False: there was no memory for it.
  [[nodiscard]] TENSORHUB_DECL bool report_cut_off(incarnation reader) noexcept;

  /// The question of `newest_listed`.
  struct listing {
    std::mutex mutex;
    session_ticket asked = 0;  ///< zero: no answer is expected
    time_point next{};         ///< when to ask again
    version_number newest{};
  };
  listing listed_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/state.ipp"
#include "tensorhub/worker/impl/updates.ipp"
#endif
