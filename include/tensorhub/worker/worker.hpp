#pragma once
/// \file worker.hpp
/// One process's part of a model: what `publisher` and `subscriber` are two doors of.
///
/// A worker owns a transport, a control block and a client of the reference server. It registers the user's
/// tensors where they are, once; it never copies a large one. Small tensors (below `chunk_bytes`) are packed
/// at publish and unpacked after an update. They lie in host memory, or where `Memory` says (a device's).
///
/// Only readers with a lease on it can connect to it (service/guarding.hpp).
///
/// Its calls that receive are in worker/updates.hpp, those that only ask the server in worker/questions.hpp.
///
/// Threads: one for the control connection, and the transport's own. An update works in the calling thread
/// and in `lanes - 1` more while it runs.
///
/// Thread safety: every member may be called from any thread. `publish`, `unpublish`, `update` and `leave`
/// are one at a time: a second call fails with `errc::busy` at once. `add` must not run beside them.
///
/// All time-outs are of the whole call; a call ends by then, with a result or an `error` that names what it
/// waited for.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/guarding.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/digest_table.hpp"
#include "tensorhub/worker/memory.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/operation_guard.hpp"
#include "tensorhub/worker/questions.hpp"
#include "tensorhub/worker/results.hpp"
#include "tensorhub/worker/statistics.hpp"
#include "tensorhub/worker/stream_order.hpp"
#include "tensorhub/worker/updates.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class worker : public worker_questions<worker<Transport, Consistency, Integrity, Memory>>,
               public worker_updates<worker<Transport, Consistency, Integrity, Memory>, Transport, Integrity>,
               public ordered_by_streams<worker<Transport, Consistency, Integrity, Memory>, Memory> {
  using receiving = worker_updates<worker, Transport, Integrity>;
  using ordered = ordered_by_streams<worker, Memory>;

 public:
  using transport_options = typename Transport::options;
  using memory_space_type = Memory;
  using offload_space = offload_space_of<Memory>;  ///< where copies for others lie

  /// Starts the transport and the control connection; throws if either cannot be. Nothing waits for the
  /// server yet.
  explicit worker(worker_options options, transport_options through = {})
      : options_{validated(std::move(options))},
        self_{detail::random_id<incarnation>()},
        transport_{with_location(through, options_.location), self_},
        capability_key_{guard_by_capability(transport_)},
        memory_{transport_},
        offloads_{std::make_unique<offloads<worker>>(
            options_, through,
            [this](version_number version, const messages::status& reason) {
              client_.with([&](session& core, time_point now) { core.offload_failed(now, version, reason); });
            })},
        client_{options_.server, session{session_options_of(), self_, layout_},
                [this](session& core) { after_step(core); }, options_.security} {}

  /// Leaves politely but quickly: readers that are still reading are cut off.
  ~worker() {
    try {
      if (joined_) leave(std::chrono::milliseconds{0});
    } catch (const error& e) {
      if (options_.log) options_.log(line_of(log_level::warning, e, self_));
    }
    offloads_->close();
  }
  worker(const worker&) = delete;
  worker& operator=(const worker&) = delete;

  /// Tells of one tensor: `data` stays the user's, must not move, and must outlive the worker. All tensors
  /// are added, in the same order in every worker of the shard, before the first other call.
  void add(std::string name, const void* data, std::span<const std::uint64_t> shape, dtype type) {
    const operation_guard busy{*this};
    if (prepared_)
      throw failure(errc::invalid_argument,
                    "tensor '" + name + "' was added after the first publish or update");
    named({}, [&] { memory_.shard().add({std::move(name), type, {shape.begin(), shape.end()}}, data); });
  }
  void add(std::string name, const void* data, std::initializer_list<std::uint64_t> shape, dtype type) {
    add(std::move(name), data, std::span{shape.begin(), shape.size()}, type);
  }

  /// Joins the model. Implied by the first publish or update; call it to find errors early.
  void join() {
    const operation_guard busy{*this};
    ensure_joined();
  }

  /// Shows the tensors' bytes as `version`. They must not change until `unpublish` has returned.
  using ordered::publish;
  publish_report publish(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout) {
    return counted_.publish([&] { return run_publish(version, timeout); });
  }

  /// Hides the version and returns when nobody reads it any more. At the deadline the remaining readers are
  /// cut off: the memory is the caller's again when this returns, whatever happens.
  unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout) {
    return counted_.unpublish([&] { return run_unpublish(timeout, false); });
  }

  using ordered::update;
  using ordered::update_from;
  using receiving::update;
  using receiving::update_from;

  /// Runs `call(held, updates)` while no operation of this worker runs or begins (throws `busy` if one does):
  /// the version that is held, and how many updates have succeeded so far.
  template <typename Call>
  auto at_rest(Call&& call) {
    const operation_guard busy{*this};
    return std::forward<Call>(call)(held_version(), receiving::updates_succeeded_);
  }

  /// The newest version that the server has told of, if it is newer than what is held. Never waits. (Joins in
  /// the background of the first call: until the server has answered there is nothing newer.)
  [[nodiscard]] std::optional<version_number> newer() {
    ensure_joined_idle();
    return client_.with([](session& core, time_point) -> std::optional<version_number> {
      const version_number held = core.held() ? core.held()->version : version_number{};
      if (core.latest() > held) return core.latest();
      return std::nullopt;
    });
  }

  /// Waits until such a version is available; reads nothing.
  version_number wait(version_selector selector,
                      std::chrono::milliseconds timeout = defaults::update_timeout) {
    ensure_joined_idle();
    const session_ticket ticket = client_.with([&](session& core, time_point now) {
      return core.wait(now, selector, now + timeout + answer_margin);
    });
    return checked(wait_for(ticket, timeout + answer_margin)).version;
  }

  /// Host memory in which this process keeps retained versions for others (worker/offloads.hpp).
  [[nodiscard]] std::uint64_t offloaded_bytes() const { return offloads_->bytes(); }

  /// Drains for at most `grace`, hands over what is retained and nobody else has, and leaves the model for
  /// good. The worker can only be destroyed after that.
  void leave(std::chrono::milliseconds grace = defaults::drain_timeout) {
    if (!joined_) return;
    static_cast<void>(counted_.unpublish([&] { return run_unpublish(grace, true); }));
    offloads_->leave(grace);
    const operation_guard busy{*this};
    const auto timeout = std::max<std::chrono::milliseconds>(grace, std::chrono::milliseconds{500});
    const session_ticket ticket =
        client_.with([&](session& core, time_point now) { return core.leave(now, now + timeout); });
    joined_ = false;
    left_ = true;
    checked(wait_for(ticket, timeout));
  }

  /// The version that is held completely; zero: none.
  [[nodiscard]] version_number held_version() {
    return client_.with(
        [](session& core, time_point) { return core.held() ? core.held()->version : version_number{}; });
  }
  [[nodiscard]] incarnation self() const noexcept { return self_; }
  [[nodiscard]] const layout& shape() const noexcept { return layout_; }
  [[nodiscard]] Transport& through() noexcept { return transport_; }
  /// Registration and packing: what they cost, once.
  [[nodiscard]] registration_cost cost() const noexcept { return memory_.shard().cost(); }
  /// What it has done since it was constructed (worker/statistics.hpp).
  [[nodiscard]] worker_statistics statistics() const {
    return counted_.values(options_, memory_.shard().cost());
  }
  [[nodiscard]] const shard_memory<Transport, Memory>& memory() const noexcept { return memory_.shard(); }

 private:
  friend tensorhub::update_handle<worker>;
  friend worker_questions<worker>;
  friend receiving;
  friend ordered;
  friend tensorhub::operation_guard<worker>;
  using operation_guard = tensorhub::operation_guard<worker>;

  static constexpr std::chrono::milliseconds answer_margin{2000};
  [[nodiscard]] session_options session_options_of() const {
    session_options out = tensorhub::session_options_of(options_);
    out.transport = Transport::name;
    out.consistency = Consistency::name;
    out.integrity = Integrity::name;
    out.address = transport_.address();
    out.capability_key = capability_key_;
    return out;
  }

  /// For calls that need no idle worker.
  void ensure_joined_idle() {
    if (joined_) return;
    const operation_guard busy{*this};
    ensure_joined();
  }
  void ensure_joined() {
    prepare();
    if (joined_) return;
    const session_ticket ticket = client_.with(
        [&](session& core, time_point now) { return core.join(now, now + options_.join_timeout); });
    checked(wait_for(ticket, options_.join_timeout));
    joined_ = true;
  }

  /// Once: fixes the layout and registers everything.
  void prepare() {
    if (prepared_) return;
    layout built = memory_.shard().build_layout(options_.chunk_bytes, context_of(options_));
    // Under the lock: a handle of update_async may be asked for its progress already.
    client_.with([&](session&, time_point) { layout_ = std::move(built); });
    named({}, [&] { memory_.register_all(layout_, self_); });
    client_.with([&](session& core, time_point) { core.reachable_at(transport_.address()); });
    prepared_ = true;
  }

  // ---- publish ------------------------------------------------------------------------------------------

  publish_report run_publish(version_number version, std::chrono::milliseconds timeout) {
    const auto started = clock_.now();
    const operation_guard busy{*this};
    ensure_joined();
    if (!version) throw failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
    if (const auto held = held_version()) {
      throw failure(errc::busy, "version " + to_string(held) + " is still published: call unpublish() first",
                    version);
    }
    publish_report report{version, layout_.bytes(), 0, 0};
    const std::uint64_t seed = Integrity::bind(options_.model, version, options_.shard);
    const auto table = named(version, [&] {
      memory_.shard().pack();
      return digest_table<Integrity>(layout_, memory_.shard().places(), seed, options_.lanes);
    });
    const digest128 root = Integrity::enabled ? Integrity::root(seed, table) : digest128{};
    report.digest_seconds = to_seconds(clock_.now() - started);
    const session_ticket ticket = client_.with([&](session& core, time_point now) {
      memory_.show(version, core.epoch(), table);
      return core.publish(now, version, root, memory_.control(), now + timeout);
    });
    const session_result result = wait_for(ticket, timeout);
    if (!result.outcome.ok()) throw failure(result.outcome, version);
    report.seconds = to_seconds(clock_.now() - started);
    return report;
  }

  unpublish_report run_unpublish(std::chrono::milliseconds timeout, bool is_leaving) {
    const auto started = clock_.now();
    const operation_guard busy{*this};
    unpublish_report report;
    if (!joined_) return report;
    const session_ticket ticket = client_.with(
        [&](session& core, time_point now) { return core.unpublish(now, now + timeout, is_leaving); });
    const session_result result = wait_for(ticket, timeout);
    if (!result.outcome.ok()) throw failure(result.outcome, {});
    report.finished = result.drained.finished;
    report.moved = result.drained.moved;
    report.cut_off = result.drained.cut_off;
    report.forced = result.forced;
    report.lost = result.drained.lost;
    report.seconds = to_seconds(clock_.now() - started);
    return report;
  }

  // ---- the session's actions (client thread or a caller's thread; the core's mutex is held) -------------

  void after_step(session& core) {
    core.progress(receiving::chunks_received_);  // goes with the next heartbeat
    refusals_.look(transport_, self_, clock_.now(), options_.log);
    for (session_action& action : core.take_actions()) {
      std::visit([&](auto& order) { perform(core, order); }, action);
    }
    results_.deliver(core.take_results());
  }

  using receiving::perform;  // what a transfer is told
  void perform(session&, const session_actions::raise_epoch& order) { memory_.raise_epoch(order.epoch); }
  void perform(session&, const session_actions::restore& order) {
    memory_.show_again(order.held.version, order.held.epoch);
  }
  void perform(session& core, const session_actions::cut_off_reader& order) {
    transport_.cut_off(order.reader);
    core.cut_off_done(clock_.now(), order.reader);
  }
  void perform(session&, const session_actions::offload& order) {
    offloads_->take(order.version, order.replica, layout_.tensors());
  }
  void perform(session&, const session_actions::drop&) {
    if (options_.dropped) options_.dropped();
  }
  void perform(session&, const session_actions::use_server& order) { client_.use_server(order.index); }
  void perform(session&, const session_actions::cut_off_all&) { memory_.revoke_all(); }

  // ---- results and errors -------------------------------------------------------------------------------

  /// The session ends every call at its deadline; the margin only guards against a stuck control thread.
  [[nodiscard]] session_result wait_for(session_ticket ticket, std::chrono::milliseconds timeout) {
    auto result = results_.wait(ticket, std::chrono::steady_clock::now() + timeout + answer_margin);
    if (!result) throw failure(errc::timed_out, "the worker's control thread does not answer");
    return *std::move(result);
  }
  /// One question and its answer.
  template <typename Start>
  session_result ask(std::chrono::milliseconds timeout, Start&& start) {
    const session_ticket ticket =
        client_.with([&](session& core, time_point now) { return start(core, now, now + timeout); });
    return checked(wait_for(ticket, timeout));
  }
  session_result checked(session_result result) const {
    if (!result.outcome.ok()) throw failure(result.outcome, {});
    return result;
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
  [[nodiscard]] error failure(errc code, const std::string& sentence, version_number version = {},
                              const error_context& known = {}) const {
    error_context context = context_of(options_);
    if (version) context.version = version.value;
    context.peer = known.peer;
    context.chunk = known.chunk;
    return error(code, sentence, std::move(context));
  }
  [[nodiscard]] error failure(const messages::status& outcome, version_number version) const {
    if (outcome.code != errc::disconnected) return failure(outcome.code, outcome.sentence, version);
    const std::string trouble = client_.trouble();
    return failure(outcome.code, outcome.sentence + (trouble.empty() ? "" : " (" + trouble + ")"), version);
  }

  worker_options options_;
  steady_clock clock_;
  incarnation self_;
  Transport transport_;
  std::string capability_key_;  ///< what readers' capabilities are made with; empty: the transport has none
  worker_memory<Transport, Memory> memory_;
  layout layout_;

  std::atomic<bool> operating_ = false;
  bool prepared_ = false;
  std::atomic<bool> joined_ = false;
  std::atomic<bool> left_ = false;

  worker_results results_;
  worker_recorder counted_;

  std::unique_ptr<offloads<worker>> offloads_;  ///< closed before its users go (~worker)

  refusal_watch refusals_;  ///< guarded by the core's mutex (client_.with)

  client_shell<session> client_;  ///< last: its thread uses everything above
};

}  // namespace tensorhub::inline TENSORHUB_MODE
