#pragma once
/// \file worker.hpp
/// One process's part of a model: what `publisher` and `subscriber` are two doors of.
///
/// A worker owns a transport, a control block and a client of the reference server. It registers the user's
/// tensors where they are, once; it never copies a large one. Small tensors (below `chunk_bytes`) are packed
/// at publish and unpacked after an update.
///
/// Threads: one for the control connection, and the transport's own. An update works in the calling thread
/// and in `lanes - 1` more while it runs.
///
/// Thread safety: every member may be called from any thread. `publish`, `unpublish`, `update` and `leave`
/// are one at a time: a second call fails with `errc::busy` at once. `add` must not run beside them.
///
/// All time-outs are of the whole call; a call ends by then, with a result or an `error` that names what it
/// waited for.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/steady_clock.hpp"
#include "tensorhub/service/client.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/shard_memory.hpp"

namespace tensorhub {

/// Who a worker is and how it behaves. Only the first three have no sensible default.
struct worker_options {
  std::string server{};  ///< of the reference server: "tcp://host:port"
  std::string model{};
  std::string replica{};
  shard_of shard{};                                   ///< {index, count}
  tensorhub::location location{};                     ///< an empty host is filled with this machine's name
  bool spot = false;                                  ///< may vanish: serves, but is never relied upon
  std::uint64_t chunk_bytes = defaults::chunk_bytes;  ///< the same for all workers of a model
  std::size_t lanes = 2;          ///< threads that read during an update and digest during a publish
  std::size_t window_chunks = 4;  ///< reads outstanding per lane
  std::chrono::milliseconds join_timeout = defaults::join_timeout;
  std::chrono::milliseconds drain_timeout = defaults::drain_timeout;      ///< of the drain inside an update
  std::chrono::milliseconds connect_timeout = defaults::connect_timeout;  ///< to a source
  std::chrono::milliseconds request_retry = defaults::request_retry;
  std::function<void(const log_line&)> log{};  ///< called from any thread; must not call the worker
};

struct publish_report {
  version_number version{};
  std::uint64_t bytes = 0;
  double digest_seconds = 0;  ///< packing and digesting
  double seconds = 0;         ///< the whole call
};

struct unpublish_report {
  std::uint32_t finished = 0;  ///< readers that ended by themselves during the call
  std::uint32_t moved = 0;     ///< readers that went on with another source
  std::uint32_t cut_off = 0;   ///< readers that the server had declared dead
  bool forced = false;         ///< the deadline came: the remaining readers were cut off
  double seconds = 0;
};

struct update_report {
  version_number version{};
  bool kept = false;  ///< was held already: nothing was read
  std::uint64_t bytes = 0;
  double seconds = 0;                  ///< the whole call
  double pull_seconds = 0;             ///< from the first connection to the last confirmed chunk
  std::vector<std::string> sources{};  ///< "replica/shard" of everybody who was read from
  std::vector<std::string> paths{};    ///< how each was reached: "tcp", "tcp (same_host: on another machine)"
};

struct update_progress {
  version_number version{};  ///< zero until a version is decided
  std::uint64_t bytes = 0;
  std::uint64_t total_bytes = 0;
  bool done = false;
};

template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class worker {
 public:
  using transport_options = typename Transport::options;

  /// Starts the transport and the control connection; throws if either cannot be. Nothing waits for the
  /// server yet.
  explicit worker(worker_options options, transport_options through = {})
      : options_{check(std::move(options))},
        self_{detail::random_id<incarnation>()},
        transport_{placed(std::move(through), options_.location), self_},
        memory_{transport_},
        client_{options_.server, session{session_options_of(), self_, layout_},
                [this](session& core) { after_step(core); }} {}

  /// Leaves politely but quickly: readers that are still reading are cut off.
  ~worker() {
    try {
      if (joined_) leave(std::chrono::milliseconds{0});
    } catch (const error& e) {
      log(log_level::warning, e.what());
    }
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
    memory_.add({std::move(name), type, {shape.begin(), shape.end()}}, data);
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
  publish_report publish(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout) {
    const auto started = clock_.now();
    const operation_guard busy{*this};
    ensure_joined();
    if (!version) throw failure(errc::invalid_argument, "version 0 cannot be published: count from 1");
    if (const auto held = held_version()) {
      throw failure(errc::busy, "version " + to_string(held) + " is still published: call unpublish() first",
                    version);
    }
    publish_report report{version, layout_.bytes(), 0, 0};
    memory_.pack();
    const std::uint64_t seed = Integrity::bind(options_.model, version, options_.shard);
    const auto table = digest_all(seed);
    const digest128 root = Integrity::enabled ? Integrity::root(seed, table) : digest128{};
    report.digest_seconds = to_seconds(clock_.now() - started);
    const session_ticket ticket = client_.with([&](session& core, time_point now) {
      show(version, core.epoch(), table);
      return core.publish(now, version, root, transport_.describe(*control_region()), now + timeout);
    });
    const session_result result = wait_for(ticket, timeout);
    if (!result.outcome.ok()) throw failure(result.outcome, version);
    report.seconds = to_seconds(clock_.now() - started);
    return report;
  }

  /// Hides the version and returns when nobody reads it any more. At the deadline the remaining readers are
  /// cut off: the memory is the caller's again when this returns, whatever happens.
  unpublish_report unpublish(std::chrono::milliseconds timeout = defaults::drain_timeout) {
    const auto started = clock_.now();
    const operation_guard busy{*this};
    unpublish_report report;
    if (!joined_) return report;
    const session_ticket ticket =
        client_.with([&](session& core, time_point now) { return core.unpublish(now, now + timeout); });
    const session_result result = wait_for(ticket, timeout);
    if (!result.outcome.ok()) throw failure(result.outcome, {});
    report.finished = result.drained.finished;
    report.moved = result.drained.moved;
    report.cut_off = result.drained.cut_off;
    report.forced = result.forced;
    report.seconds = to_seconds(clock_.now() - started);
    return report;
  }

  /// Reads a version into the tensors, in place. Their bytes are undefined while this runs, and after an
  /// error unless the error says otherwise; after success this worker is a source itself. A version that is
  /// held already is returned at once.
  update_report update(version_selector selector = latest,
                       std::chrono::milliseconds timeout = defaults::update_timeout) {
    return run_update(operation_guard{*this}, selector, timeout, nullptr);
  }

  /// A running update. Destroying it cancels and waits.
  class update_handle {
   public:
    update_handle(update_handle&&) noexcept = default;
    update_handle& operator=(update_handle&&) noexcept = default;
    ~update_handle() {
      if (state_ && thread_.joinable()) cancel();
    }
    [[nodiscard]] update_progress progress() const { return state_->owner->progress_of(*state_); }
    /// The update ends soon with `errc::cancelled`, unless it has just succeeded.
    void cancel() { state_->owner->cancel(*state_); }
    [[nodiscard]] bool done() const {
      const std::lock_guard lock{state_->mutex};
      return state_->ended;
    }
    /// The result, or the update's error; `timed_out` if it is still running after `timeout`.
    update_report wait(std::chrono::milliseconds timeout = defaults::update_timeout) {
      std::unique_lock lock{state_->mutex};
      if (!state_->changed.wait_for(lock, timeout, [this] { return state_->ended; })) {
        throw state_->owner->failure(errc::timed_out, "the update is still running");
      }
      if (state_->failure) std::rethrow_exception(state_->failure);
      return state_->report;
    }

   private:
    friend class worker;
    struct shared {
      worker* owner = nullptr;
      mutable std::mutex mutex;
      std::condition_variable changed;
      bool ended = false;
      std::exception_ptr failure;
      update_report report;
      session_ticket ticket = 0;
      bool cancelled = false;
    };
    explicit update_handle(std::shared_ptr<shared> state) : state_{std::move(state)} {}
    std::shared_ptr<shared> state_;
    std::jthread thread_;
  };

  /// Like `update`, in a thread of its own; the operation has begun when this returns. The worker must
  /// outlive the handle.
  [[nodiscard]] update_handle update_async(version_selector selector = latest,
                                           std::chrono::milliseconds timeout = defaults::update_timeout) {
    auto state = std::make_shared<typename update_handle::shared>();
    state->owner = this;
    update_handle handle{state};
    handle.thread_ = std::jthread{[this, state, selector, timeout, busy = operation_guard{*this}]() mutable {
      update_report report;
      std::exception_ptr failed;
      try {
        report = run_update(std::move(busy), selector, timeout, state.get());
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

  /// The newest version that the server has told of, if it is newer than what is held. Never waits. (Joins in
  /// the background of the first call: until the server has answered there is nothing newer.)
  [[nodiscard]] std::optional<version_number> newer() {
    if (!joined_) {
      const operation_guard busy{*this};
      ensure_joined();
    }
    return client_.with([](session& core, time_point) -> std::optional<version_number> {
      const version_number held = core.held() ? core.held()->version : version_number{};
      if (core.latest() > held) return core.latest();
      return std::nullopt;
    });
  }

  /// Waits until such a version is available; reads nothing.
  version_number wait(version_selector selector,
                      std::chrono::milliseconds timeout = defaults::update_timeout) {
    if (!joined_) {
      const operation_guard busy{*this};
      ensure_joined();
    }
    const session_ticket ticket = client_.with([&](session& core, time_point now) {
      return core.wait(now, selector, now + timeout + answer_margin);
    });
    return checked(wait_for(ticket, timeout + answer_margin)).version;
  }

  /// What the server knows of a model (empty: of all models). Works without any tensor.
  [[nodiscard]] std::vector<messages::model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout) {
    if (model.size() > limits::name_bytes)
      throw failure(errc::limit_exceeded,
                    "no model has a name of more than 512 bytes: " + model.substr(0, 64));
    const session_ticket ticket = client_.with(
        [&](session& core, time_point now) { return core.list(now, std::move(model), now + timeout); });
    return checked(wait_for(ticket, timeout)).list.models;
  }

  /// The tensors of a shard of this worker's model, as its first worker announced them. Works without any
  /// tensor.
  [[nodiscard]] messages::describe_reply describe_model(
      std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout) {
    const session_ticket ticket =
        client_.with([&](session& core, time_point now) { return core.describe(now, shard, now + timeout); });
    return checked(wait_for(ticket, timeout)).description;
  }

  /// Drains for at most `grace` and leaves the model for good. The worker can only be destroyed after that.
  void leave(std::chrono::milliseconds grace = defaults::drain_timeout) {
    if (!joined_) return;
    unpublish(grace);
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
  [[nodiscard]] registration_cost cost() const noexcept { return memory_.cost(); }

 private:
  using driver_type = pull_driver<Transport, Integrity>;
  using region_type = typename Transport::memory_region;

  static constexpr std::chrono::milliseconds answer_margin{2000};

  /// Publish, unpublish, update, leave: one at a time. Movable, so that a call can go on in another thread.
  class operation_guard {
   public:
    explicit operation_guard(worker& owner) : owner_{&owner} {
      if (owner.operating_.exchange(true)) {
        owner_.release();
        throw owner.failure(errc::busy,
                            "another publish, unpublish, update or leave of this worker is running");
      }
      if (owner.left_)
        throw owner.failure(errc::invalid_argument, "this worker has left its model: construct a new one");
    }

   private:
    struct end_operation {
      void operator()(worker* owner) const noexcept { owner->operating_ = false; }
    };
    std::unique_ptr<worker, end_operation> owner_;
  };

  /// A transport that chooses by location is told ours.
  [[nodiscard]] static transport_options placed(transport_options through, const location& ours) {
    if constexpr (requires { through.here = ours; }) {
      if (through.here == location{}) through.here = ours;
    }
    return through;
  }
  [[nodiscard]] static worker_options check(worker_options options) {
    const auto refuse = [](std::string sentence) { throw error(errc::invalid_argument, sentence); };
    if (options.server.empty())
      refuse("worker_options::server is empty: give the reference server's address");
    if (options.model.empty()) refuse("worker_options::model is empty");
    if (options.replica.empty()) refuse("worker_options::replica is empty");
    for (const std::string* name :
         {&options.model, &options.replica, &options.location.datacenter, &options.location.rack,
          &options.location.host, &options.location.device}) {
      if (name->size() > limits::name_bytes)
        throw error(errc::limit_exceeded, "a name has more than 512 bytes: " + name->substr(0, 64));
    }
    if (options.shard.count == 0 || options.shard.index >= options.shard.count) {
      refuse("shard " + to_string(options.shard) + " does not exist: the index must be below the count");
    }
    if (options.location.host.empty()) {
      char name[256] = {};
      if (::gethostname(name, sizeof name - 1) == 0) options.location.host = name;
    }
    options.lanes = std::clamp<std::size_t>(options.lanes, 1, 64);
    options.window_chunks = std::clamp<std::size_t>(options.window_chunks, 1, 1024);
    return options;
  }

  [[nodiscard]] session_options session_options_of() const {
    session_options out;
    out.server = options_.server;
    out.model = options_.model;
    out.replica = options_.replica;
    out.shard = options_.shard;
    out.place = options_.location;
    out.spot = options_.spot;
    out.transport = Transport::name;
    out.consistency = Consistency::name;
    out.integrity = Integrity::name;
    out.address = transport_.address();
    out.request_retry = options_.request_retry;
    out.drain_timeout = options_.drain_timeout;
    return out;
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
    layout_ = memory_.build_layout(options_.chunk_bytes, failure_context());
    memory_.register_all(layout_);
    control_.emplace(self_, layout_);
    const memory_range range{control_->memory().data(), control_->memory().size()};
    control_regions_ = transport_.register_memory(std::span{&range, 1}, region_access::remote_read);
    prepared_ = true;
  }

  [[nodiscard]] const region_type* control_region() const noexcept { return &control_regions_.front(); }

  /// Fills the control block and shows the version. Digest table empty: integrity is off.
  void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) {
    control_->set_digests(table);
    for (std::size_t i = 0; i < layout_.segments().size(); ++i) control_->set_segment(i, memory_.remote(i));
    control_->show(version, epoch);
  }

  [[nodiscard]] std::vector<digest128> digest_all(std::uint64_t seed) {
    if constexpr (!Integrity::enabled) return {};
    std::vector<digest128> table(layout_.chunk_count());
    std::atomic<chunk_index> next{0};
    const auto work = [&] {
      for (chunk_index chunk = next++; chunk < table.size(); chunk = next++) {
        const chunk_slice slice = layout_.slice(chunk);
        table[chunk] = Integrity::chunk_digest(
            seed, chunk, {memory_.places()[slice.segment].data + slice.offset, slice.bytes});
      }
    };
    std::vector<std::jthread> helpers;
    const std::size_t lanes = std::min<std::size_t>(options_.lanes, layout_.chunk_count() / 8 + 1);
    for (std::size_t i = 1; i < lanes; ++i) helpers.emplace_back(work);
    work();
    helpers.clear();
    return table;
  }

  // ---- update -------------------------------------------------------------------------------------------

  update_report run_update([[maybe_unused]] operation_guard busy, const version_selector& selector,
                           std::chrono::milliseconds timeout, typename update_handle::shared* handle) {
    const auto started = clock_.now();
    ensure_joined();
    const session_ticket ticket = client_.with(
        [&](session& core, time_point now) { return core.update(now, selector, now + timeout); });
    if (handle != nullptr) {
      std::unique_lock lock{handle->mutex};
      handle->ticket = ticket;
      const bool cancelled = handle->cancelled;
      lock.unlock();
      if (cancelled) client_.with([&](session& core, time_point now) { core.cancel(now, ticket); });
    }
    update_report report;
    const auto give_up = std::chrono::steady_clock::now() + timeout + answer_margin + answer_margin;
    std::optional<session_result> result;
    while (!result) {
      std::optional<pull_target> order;
      {
        std::unique_lock lock{results_mutex_};
        const bool something =
            changed_.wait_until(lock, give_up, [&] { return results_.contains(ticket) || pull_order_; });
        if (!something) throw failure(errc::timed_out, "the update's own control thread does not answer");
        order = std::exchange(pull_order_, std::nullopt);
        if (!order) result = take_result(ticket);
      }
      if (order) pull_now(std::move(*order), report);
    }
    if (!result->outcome.ok()) throw failure(result->outcome, result->version);
    report.version = result->version;
    report.kept = result->kept;
    report.seconds = to_seconds(clock_.now() - started);
    return report;
  }

  /// One transfer, until it is complete, failed or stopped; tells the session how it ended.
  void pull_now(pull_target order, update_report& report) {
    const auto started = clock_.now();
    const version_number version = order.facts.version;
    const std::uint64_t seed = Integrity::bind(options_.model, version, options_.shard);
    driver_type driver{
        transport_,
        layout_,
        memory_.places(),
        seed,
        self_.value,
        {options_.lanes, options_.window_chunks, options_.connect_timeout},
        {[this](const source_failure& lost) {
           client_.with([&](session& core, time_point now) {
             core.source_failed(now, lost.lease, lost.reason, lost.detail);
           });
         },
         [this](lease_id lease) {
           client_.with([&](session& core, time_point now) { core.source_released(now, lease); });
         }}};
    driver.add_source(std::move(order));
    client_.with([&](session& core, time_point) {
      driver_ = &driver;
      reading_version_ = version;
      for (auto& [target, released] : std::exchange(pending_switches_, {}))
        driver.switch_source(std::move(target), released);
      if (std::exchange(stop_requested_, false) || core.fatal()) driver.stop();
    });
    bool complete = false;
    messages::status trouble{errc::cancelled, "the transfer was stopped"};
    try {
      complete = driver.run();
    } catch (const error& e) {
      trouble = {e.code(), e.sentence()};
    }
    if (complete) memory_.unpack();
    report.bytes = driver.progress().bytes;
    report.pull_seconds = to_seconds(clock_.now() - started);
    report.sources = driver.source_names();
    report.paths = driver.source_paths();
    client_.with([&](session& core, time_point now) {
      driver_ = nullptr;
      stop_requested_ = false;
      pending_switches_.clear();
      if (complete) {
        show(version, core.epoch(), driver.table());
        core.pull_finished(now, transport_.describe(*control_region()));
      } else {
        core.pull_failed(now, trouble, driver.intact());
      }
    });
  }

  void cancel(typename update_handle::shared& handle) {
    std::unique_lock lock{handle.mutex};
    handle.cancelled = true;
    const session_ticket ticket = handle.ticket;
    lock.unlock();
    if (ticket != 0) client_.with([&](session& core, time_point now) { core.cancel(now, ticket); });
  }

  [[nodiscard]] update_progress progress_of(const typename update_handle::shared& handle) {
    update_progress out = client_.with([&](session&, time_point) -> update_progress {
      if (driver_ == nullptr) return {{}, 0, layout_.bytes(), false};
      const pull_progress at = driver_->progress();
      return {reading_version_, at.bytes, at.total_bytes, false};
    });
    const std::lock_guard lock{handle.mutex};
    if (handle.ended && !handle.failure) {
      out = {handle.report.version, layout_.bytes(), layout_.bytes(), true};
    }
    out.done = handle.ended;
    return out;
  }

  // ---- the session's actions (client thread or a caller's thread; the core's mutex is held) -------------

  void after_step(session& core) {
    for (session_action& action : core.take_actions()) {
      std::visit([&](auto& order) { perform(core, order); }, action);
    }
    auto results = core.take_results();
    if (results.empty()) return;
    const std::lock_guard lock{results_mutex_};
    for (session_result& result : results) results_.emplace(result.ticket, std::move(result));
    changed_.notify_all();
  }

  void perform(session&, const session_actions::raise_epoch& order) {
    if (control_) control_->raise_epoch(order.epoch);
  }
  void perform(session&, const session_actions::restore& order) {
    if (control_) control_->show(order.held.version, order.held.epoch);
  }
  void perform(session&, session_actions::start_pull& order) {
    const std::lock_guard lock{results_mutex_};
    pending_switches_.clear();
    stop_requested_ = false;
    pull_order_ = target_of(order.source);
    changed_.notify_all();
  }
  void perform(session&, session_actions::switch_source& order) {
    if (driver_ != nullptr)
      driver_->switch_source(target_of(order.source), order.released);
    else
      pending_switches_.emplace_back(target_of(order.source), order.released);
  }
  void perform(session&, const session_actions::stop_pull&) {
    if (driver_ != nullptr)
      driver_->stop();
    else
      stop_requested_ = true;
  }
  void perform(session& core, const session_actions::cut_off_reader& order) {
    transport_.cut_off(order.reader);
    core.cut_off_done(clock_.now(), order.reader);
  }
  void perform(session&, const session_actions::cut_off_all&) {
    memory_.revoke_all();
    for (region_type& region : control_regions_) transport_.revoke(region);
  }

  [[nodiscard]] static pull_target target_of(const messages::assignment& source) {
    return {{source.lease, source.source, source.version, source.epoch, source.root},
            source.address,
            source.control,
            source.source_replica + "/" + std::to_string(source.source_shard)};
  }

  // ---- results and errors -------------------------------------------------------------------------------

  /// Pre-condition: results_mutex_ is held and the result is there.
  [[nodiscard]] session_result take_result(session_ticket ticket) {
    auto node = results_.extract(ticket);
    return std::move(node.mapped());
  }
  /// The session ends every call at its deadline; the margin only guards against a stuck control thread.
  [[nodiscard]] session_result wait_for(session_ticket ticket, std::chrono::milliseconds timeout) {
    std::unique_lock lock{results_mutex_};
    const bool there =
        changed_.wait_for(lock, timeout + answer_margin, [&] { return results_.contains(ticket); });
    if (!there) throw failure(errc::timed_out, "the worker's control thread does not answer");
    return take_result(ticket);
  }
  session_result checked(session_result result) const {
    if (!result.outcome.ok()) throw failure(result.outcome, {});
    return result;
  }

  [[nodiscard]] error_context failure_context() const {
    return {.model = options_.model,
            .replica = options_.replica,
            .shard = options_.shard.index,
            .version = {},
            .peer = {},
            .chunk = {}};
  }
  [[nodiscard]] error failure(errc code, const std::string& sentence, version_number version = {}) const {
    error_context context = failure_context();
    if (version) context.version = version.value;
    return error(code, sentence, std::move(context));
  }
  [[nodiscard]] error failure(const messages::status& outcome, version_number version) const {
    return failure(outcome.code, outcome.sentence, version);
  }
  void log(log_level level, std::string text) const {
    if (options_.log) options_.log({level, std::move(text)});
  }

  worker_options options_;
  steady_clock clock_;
  incarnation self_;
  Transport transport_;
  shard_memory<Transport, Memory> memory_;
  layout layout_;
  std::optional<control_block> control_;
  std::vector<region_type> control_regions_;

  std::atomic<bool> operating_ = false;
  bool prepared_ = false;
  std::atomic<bool> joined_ = false;
  std::atomic<bool> left_ = false;

  std::mutex results_mutex_;
  std::condition_variable changed_;
  std::map<session_ticket, session_result> results_;
  std::optional<pull_target> pull_order_;  ///< guarded by results_mutex_

  // Guarded by the core's mutex (client_.with).
  driver_type* driver_ = nullptr;
  version_number reading_version_{};
  bool stop_requested_ = false;
  std::vector<std::pair<pull_target, lease_id>> pending_switches_;

  client_shell<session> client_;  ///< last: its thread uses everything above
};

}  // namespace tensorhub
