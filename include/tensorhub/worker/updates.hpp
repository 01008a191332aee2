#pragma once
/// \file updates.hpp
/// The calls of a worker that receive: update, update_async and update_from.
///
///     caller                                session (in the control thread, or in a caller's)
///     update ------------------------------> asks the server for a version and sources
///     carries the order out with a driver <- start_pull; meanwhile add_source, release_source, stop_pull
///     tells how it ended ------------------> the result, which the call returns or throws
///
/// A transfer runs in the calling thread and in `lanes - 1` more. What has arrived is shown to others while
/// it runs; a copy of a neighbour's bytes only when it is complete.
///
/// Thread safety: as `worker`, whose base this is: one operation at a time, progress and cancel from any
/// thread. What the session orders comes with its mutex held, and is never waited for.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/types/units.hpp"
#include "tensorhub/worker/operation_guard.hpp"
#include "tensorhub/worker/pull_order.hpp"
#include "tensorhub/worker/results.hpp"
#include "tensorhub/worker/update_handle.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// `Worker` derives from this and makes it its friend: it works with the worker's transport, memory, client
/// and counters.
template <typename Worker, typename Transport, typename Integrity>
class worker_updates {
 public:
  using update_handle = tensorhub::update_handle<Worker>;

  /// Reads a version into the tensors, in place. Their bytes are undefined while this runs, and after an
  /// error unless the error says otherwise; after success this worker is a source itself. A version that is
  /// held already is returned at once.
  ///
  /// While it runs, what has arrived is already served to others. With `prefer_local` only a version is taken
  /// that somebody in this datacenter holds completely; if there is none newer than what is held, that is
  /// kept.
  update_report update(version_selector selector = latest,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return whole().counted_.update(
        [&] { return run_update(operation_guard{whole()}, selector, timeout, reach, nullptr); });
  }

  /// Like `update`, in a thread of its own; the operation has begun when this returns. The worker must
  /// outlive the handle.
  [[nodiscard]] update_handle update_async(version_selector selector = latest,
                                           std::chrono::milliseconds timeout = defaults::update_timeout,
                                           update_reach reach = update_reach::anywhere) {
    auto state = std::make_shared<typename update_handle::shared>();
    state->owner = &whole();
    update_handle handle{state};
    handle.thread_ =
        std::jthread{[this, state, selector, timeout, reach, busy = operation_guard{whole()}]() mutable {
          update_report report;
          std::exception_ptr failed;
          try {
            report = whole().counted_.update(
                [&] { return run_update(std::move(busy), selector, timeout, reach, state.get()); });
          } catch (...) {
            failed = std::current_exception();
          }
          const std::lock_guard lock{state->mutex};
          state->report = std::move(report);
          state->failure = failed;
          state->ended = true;
          state->changed.notify_all();
        }};
    return handle;
  }

  /// `update(exactly(v))` of the version v that `neighbour` holds: another worker of this process, for the
  /// same shard. Its bytes were verified when they arrived and cannot change meanwhile (it is busy), so they
  /// are copied by `lanes` threads rather than read again, and its digest table is taken over. Until the copy
  /// begins a failure leaves shown what was held before. Throws `not_found` if the neighbour holds nothing.
  update_report update_from(Worker& neighbour, std::chrono::milliseconds timeout = defaults::update_timeout) {
    const operation_guard theirs{neighbour};
    operation_guard ours{whole()};
    const auto held = neighbour.client_.with([](session& core, time_point) { return core.held(); });
    if (!held) throw whole().failure(errc::not_found, "the worker to copy from holds no version");
    whole().ensure_joined();
    if (whole().layout_.digest() != neighbour.layout_.digest()) {
      throw whole().failure(errc::layout_mismatch, "the worker to copy from has other tensors: " +
                                                       first_difference(whole().layout_, neighbour.layout_));
    }
    copied_from_.emplace(neighbour, *held);
    struct forget {
      std::optional<copy_origin>& origin;
      ~forget() { origin.reset(); }
    } const forget_at_exit{copied_from_};
    return whole().counted_.update([&] {
      return run_update(std::move(ours), exactly(held->version), timeout, update_reach::anywhere, nullptr);
    });
  }

 private:
  friend Worker;
  friend update_handle;
  using operation_guard = tensorhub::operation_guard<Worker>;
  using driver_type = pull_driver<Transport, Integrity>;

  /// A neighbour's bytes, and which version they are. The neighbour is busy while this lives.
  struct copy_origin {
    Worker* owner;
    messages::reference held;
    copy_origin(Worker& neighbour, const messages::reference& version) : owner{&neighbour}, held{version} {}
  };

  worker_updates() = default;
  [[nodiscard]] Worker& whole() noexcept { return static_cast<Worker&>(*this); }

  update_report run_update([[maybe_unused]] operation_guard busy, const version_selector& selector,
                           std::chrono::milliseconds timeout, update_reach reach,
                           typename update_handle::shared* handle) {
    const auto started = whole().clock_.now();
    whole().ensure_joined();
    const session_ticket ticket = whole().client_.with([&](session& core, time_point now) {
      std::optional<remote_region> shown;  // a copy is shown when it is complete
      if (!copied_from_) shown = whole().memory_.control();
      return core.update(now, selector, now + timeout, shown, reach);
    });
    if (handle != nullptr) {
      std::unique_lock lock{handle->mutex};
      handle->ticket = ticket;
      const bool cancelled = handle->cancelled;
      lock.unlock();
      if (cancelled) whole().client_.with([&](session& core, time_point now) { core.cancel(now, ticket); });
    }
    update_report report;
    const auto give_up =
        std::chrono::steady_clock::now() + timeout + Worker::answer_margin + Worker::answer_margin;
    std::optional<session_result> result;
    while (!result) {
      worker_results::step next = whole().results_.next(ticket, give_up);
      if (!next.order && !next.result)
        throw whole().failure(errc::timed_out, "the update's own control thread does not answer");
      result = std::move(next.result);
      if (!next.order) continue;
      report.wait_seconds = to_seconds(whole().clock_.now() - started);
      copied_from_ ? copy_now(*next.order, report) : pull_now(*std::move(next.order), report);
    }
    if (!result->outcome.ok()) throw whole().failure(result->outcome, result->version);
    report.version = result->version;
    report.kept = result->kept;
    report.seconds = to_seconds(whole().clock_.now() - started);
    ++updates_succeeded_;
    return report;
  }

  /// In the place of a transfer: the neighbour's bytes. Nothing can stop it once it has begun.
  void copy_now(const pull_order& order, update_report& report) {
    const auto started = whole().clock_.now();
    Worker& neighbour = *copied_from_->owner;
    const messages::reference& origin = copied_from_->held;
    messages::status trouble{};
    bool begun = false;
    if (whole().client_.with([&](session& core, time_point) { return stop_requested_ || core.fatal(); })) {
      trouble = {errc::cancelled, "the copy was stopped before it had begun"};
    } else if (order.version != origin.version || order.sources.front().facts.root != origin.root) {
      trouble = {errc::version_conflict, "the bytes to copy are not those of version " +
                                             to_string(order.version) + " as the server knows it"};
    } else {
      try {
        begun = true;
        whole().memory_.shard().copy_segments(neighbour.memory_.shard(), whole().options_.lanes);
        whole().memory_.shard().unpack();
        report.bytes = whole().layout_.bytes();
        report.sources = {neighbour.options_.replica + "/" + std::to_string(whole().options_.shard.index)};
        report.paths = {"copy"};
        report.source_bytes = {report.bytes};
        whole().counted_.received("copy", false, report.bytes);
      } catch (const std::exception& e) {
        trouble = {errc::system_failed, std::string{"the copy failed: "} + e.what()};
      }
    }
    report.pull_seconds = to_seconds(whole().clock_.now() - started);
    whole().client_.with([&](session& core, time_point now) {
      stop_requested_ = false;
      pending_changes_.clear();
      // On the host nothing fails after the first byte.
      if (!trouble.ok())
        return core.pull_failed(now, trouble, Worker::memory_space_type::host_accessible || !begun);
      whole().memory_.show(origin.version, core.epoch(), neighbour.memory_.digests());
      core.pull_finished(now, whole().memory_.control());
    });
  }

  /// One transfer, until it is complete, failed or stopped; tells the session how it ended.
  void pull_now(pull_order order, update_report& report) {
    const auto started = whole().clock_.now();
    const worker_options& options = whole().options_;
    const version_number version = order.version;
    const std::uint64_t seed = Integrity::bind(options.model, version, options.shard);
    pull_driver_options how{options.lanes, options.window_chunks, options.connect_timeout};
    how.rules.far_window_chunks = options.far_window_chunks;
    driver_type driver{whole().transport_,
                       whole().layout_,
                       whole().memory_.shard().places(),
                       seed,
                       first_chunk_of(order.ordinal, whole().layout_.chunk_count()),
                       how,
                       pull_events(order)};
    for (pull_target& source : order.sources) driver.add_source(std::move(source));
    whole().client_.with([&](session& core, time_point) {
      driver_ = &driver;
      reading_version_ = version;
      for (pull_change& change : std::exchange(pending_changes_, {})) change_sources(std::move(change));
      if (std::exchange(stop_requested_, false) || core.fatal()) driver.stop();
    });
    bool complete = false;
    messages::status trouble{errc::cancelled, "the transfer was stopped"};
    try {
      complete = driver.run();
      if (complete) whole().memory_.shard().unpack();
    } catch (const error& e) {
      complete = false;
      trouble = {e.code(), e.sentence()};
    }
    report.pull_seconds = to_seconds(whole().clock_.now() - started);
    report.add(driver.progress());
    whole().counted_.transferred(driver.progress());
    whole().client_.with([&](session& core, time_point now) {
      driver_ = nullptr;
      stop_requested_ = false;
      pending_changes_.clear();
      chunks_received_ = 0;
      if (complete) {
        whole().memory_.show(version, core.epoch(), driver.table());
        core.pull_finished(now, whole().memory_.control());
      } else {
        // A lane may have shown what it received after the session's end.
        whole().memory_.raise_epoch(core.epoch());
        core.pull_failed(now, trouble, driver.intact());
      }
    });
  }

  /// What the driver tells while it runs; its lanes call.
  [[nodiscard]] typename driver_type::callbacks pull_events(const pull_order& order) {
    typename driver_type::callbacks out;
    out.source_failed = [this, version = order.version](const source_failure& lost) {
      whole().counted_.source_failed(lost.reason);
      if (whole().options_.log) whole().options_.log(line_of(whole().options_, whole().self_, version, lost));
      whole().client_.with([&](session& core, time_point now) {
        core.source_failed(now, lost.lease, lost.reason, lost.detail);
      });
    };
    out.source_released = [this](lease_id lease) {
      whole().client_.with([&](session& core, time_point now) { core.source_released(now, lease); });
    };
    out.stalled = [this](const std::string& detail) {
      whole().counted_.stalled();
      whole().client_.with([&](session& core, time_point now) { core.pull_stalled(now, detail); });
    };
    out.believed = [this, version = order.version, epoch = order.epoch](std::span<const digest128> table) {
      whole().memory_.show_receiving(version, epoch, table);
    };
    out.confirmed = [this](std::span<const chunk_index> chunks) {
      for (const chunk_index chunk : chunks) whole().memory_.add_chunk(chunk);
      chunks_received_ += chunks.size();
    };
    out.traced = whole().options_.trace;
    return out;
  }

  // ---- for handles --------------------------------------------------------------------------------------

  void cancel(typename update_handle::shared& handle) {
    std::unique_lock lock{handle.mutex};
    handle.cancelled = true;
    const session_ticket ticket = handle.ticket;
    lock.unlock();
    if (ticket != 0) whole().client_.with([&](session& core, time_point now) { core.cancel(now, ticket); });
  }

  [[nodiscard]] update_progress progress_of(const typename update_handle::shared& handle) {
    const layout& shape = whole().layout_;
    update_progress out = whole().client_.with([&](session&, time_point) -> update_progress {
      if (driver_ == nullptr) return {{}, 0, shape.bytes(), false, {}};
      pull_progress at = driver_->progress();
      return {reading_version_, at.bytes, at.total_bytes, false, std::move(at.sources)};
    });
    const std::lock_guard lock{handle.mutex};
    if (handle.ended && !handle.failure) {
      out = {handle.report.version, shape.bytes(), shape.bytes(), true, {}};
    }
    out.done = handle.ended;
    return out;
  }

  // ---- the session's orders (the core's mutex is held) --------------------------------------------------

  void perform(session& core, session_actions::start_pull& order) {
    pending_changes_.clear();
    stop_requested_ = false;
    pull_order next = pull_order_of(order, core.epoch(), whole().layout_.chunk_count());
    if (!copied_from_) core.pull_started(whole().clock_.now(), whole().memory_.control());
    whole().results_.order(std::move(next));
  }
  void perform(session&, session_actions::add_source& order) {
    change_sources({pull_target_of(order.source, whole().layout_.chunk_count()), order.released});
  }
  void perform(session&, const session_actions::release_source& order) {
    change_sources({std::nullopt, order.released});
  }
  void perform(session&, const session_actions::stop_pull&) {
    if (driver_ != nullptr)
      driver_->stop();
    else
      stop_requested_ = true;
  }
  void change_sources(pull_change change) {
    if (driver_ == nullptr) return pending_changes_.push_back(std::move(change));
    if (change.released) driver_->release_source(change.released);
    if (change.added) driver_->add_source(*std::move(change.added));
  }

  // As all operations: one at a time.
  std::optional<copy_origin> copied_from_;  ///< of the update that is running
  std::uint64_t updates_succeeded_ = 0;
  std::atomic<std::uint64_t> chunks_received_ = 0;  ///< of the update that is running

  // Guarded by the core's mutex (client_.with).
  driver_type* driver_ = nullptr;
  version_number reading_version_{};
  bool stop_requested_ = false;
  std::vector<pull_change> pending_changes_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
