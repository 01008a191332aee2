#pragma once
/// \file small_worker.hpp
/// A worker of the exhaustive search: the real session, and a shard of one chunk whose bytes are one number,
/// the version. The reads of a transfer are single steps, which the search puts in every order.
///
/// A transfer stands for the pull core, by the same rules of belief: a source is read only if its control
/// block is that of the lease; a chunk counts after the header was read again, unchanged. There are no
/// digests, so that nothing but this check keeps wrong bytes apart. One read takes its bytes at one moment.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/simulation/search/state_digest.hpp"
#include "support/simulation/violation.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/worker/session_orders.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// What a process's peers see of it.
struct small_memory {
  std::uint64_t content = 0;  ///< the version whose bytes lie there; zero: no version's
  control_state state = control_state::empty;
  version_number version{};
  std::uint64_t epoch = 0;
  bool has_chunk = false;
  std::uint64_t open_epoch = 0;      ///< of what is shown now; zero: nothing is
  std::uint64_t promised_epoch = 0;  ///< at which it was last complete; zero: bytes have changed since
  std::uint64_t keys = 1;            ///< generation of the keys that are valid
  std::set<incarnation> barred{};
};

/// Of a source: nothing is known; its control block is the lease's; it has the chunk; the chunk was read;
/// nothing more will be read.
enum class read_progress : std::uint8_t { unknown, believed, offered, arrived, over };
struct small_source {
  messages::assignment from{};
  read_progress at = read_progress::unknown;
  bool by_lease = true;  ///< the source showed the lease's version when the chunk was read
  bool release = false;  ///< report when no read of it is left
};
struct small_transfer {
  version_number version{};
  std::uint64_t epoch = 0;
  bool showing = false;
  bool touched = false;
  std::vector<small_source> sources{};
  time_point stalls_at{};
};

/// Planted faults of a worker.
struct small_faults {
  bool skips_header_check = false;  ///< accepts a chunk without reading the header again
  bool cuts_nobody_off = false;     ///< confirms cut-offs without doing them
};

class small_worker {
 public:
  struct services {
    std::function<const small_worker*(incarnation)> find{};  ///< null: that process has ended
    std::function<std::string(const small_worker&)> reader_of{};
    report_violation violate{};
  };
  small_worker(session_options options, incarnation self, const layout& shape, services world)
      : name_{options.replica + "/" + std::to_string(options.shard.index)},
        world_{std::move(world)},
        core_{std::move(options), self, shape} {}

  [[nodiscard]] session& core() noexcept { return core_; }
  [[nodiscard]] const session& core() const noexcept { return core_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const small_memory& memory() const noexcept { return memory_; }
  [[nodiscard]] const std::optional<small_transfer>& transfer() const noexcept { return transfer_; }
  /// The version that it shows as complete; zero: none.
  [[nodiscard]] version_number shown() const noexcept {
    return memory_.state == control_state::shown ? memory_.version : version_number{};
  }

  void add_to(state_digest& out) const {
    const small_memory& m = memory_;
    out.add(core_, m.content, m.state, m.version, m.epoch, m.has_chunk, m.open_epoch, m.promised_epoch,
            m.keys, m.barred, refused_, transfer_.has_value());
    if (!transfer_) return;
    out.add(transfer_->version, transfer_->epoch, transfer_->showing, transfer_->touched,
            transfer_->stalls_at, transfer_->sources.size());
    for (const small_source& each : transfer_->sources)
      out.add(each.from, each.at, each.by_lease, each.release);
  }

  /// All that another process can see of this one. While nothing is shown, the epoch means nothing yet.
  [[nodiscard]] auto visible() const {
    const small_memory& m = memory_;
    const bool shows = m.state != control_state::empty;
    return std::tuple{m.content,        m.state, m.version, shows ? m.epoch : 0, m.has_chunk, m.open_epoch,
                      m.promised_epoch, m.keys,  m.barred};
  }

  // ---- the user's side

  session_ticket publish(time_point now, version_number version, time_point deadline) {
    if (!core_.held() && !core_.busy() && !core_.fatal()) {
      memory_.content = version.value;
      memory_shell{*this}.show(version, core_.epoch(), {});
    }
    return core_.publish(now, version, {}, region(), deadline);
  }
  session_ticket update(time_point now, const version_selector& wanted, time_point deadline) {
    return core_.update(now, wanted, deadline, region());
  }
  /// An optimizer's step after the unpublish.
  void overwrite() {
    check_unread("its trainer changes them");
    memory_.content = 0;
  }

  // ---- the shell

  /// Carries out what the session has ordered.
  void act(time_point now) {
    for (auto orders = core_.take_actions(); !orders.empty(); orders = core_.take_actions())
      for (auto& order : orders) visit([&](auto& each) { perform(now, each); }, order);
  }
  /// The transfer has waited too long.
  void note_stall(time_point now, duration patience) {
    if (!transfer_ || now < transfer_->stalls_at) return;
    transfer_->stalls_at = now + patience;
    core_.pull_stalled(now, "nothing new");
  }

  /// Whether this source has something to read now, or a failure to notice.
  [[nodiscard]] bool can_read(std::size_t slot) const {
    const small_source& source = transfer_->sources[slot];
    switch (source.at) {
      case read_progress::over:
        return false;
      case read_progress::arrived:
        return true;
      case read_progress::unknown:
        return look(source) != sight::early;
      case read_progress::believed:
        return look(source) != sight::lease || has_chunk(source);
      case read_progress::offered:
        return !has_taken();
    }
    return false;
  }
  /// One read: the control block of this source, its chunk, or its header again.
  void read(time_point now, std::size_t slot) {
    small_source& source = transfer_->sources[slot];
    const sight seen = look(source);
    if (source.at == read_progress::arrived) return confirm(now, slot, seen);
    if (source.at == read_progress::offered) return take(now, slot, seen);
    if (seen != sight::lease) return lose(now, slot);
    source.at = has_chunk(source) ? read_progress::offered : read_progress::believed;
    if (std::exchange(transfer_->showing, true)) return;
    memory_.state = control_state::receiving;
    memory_.version = transfer_->version;
    memory_.epoch = memory_.open_epoch = transfer_->epoch;
    memory_.has_chunk = false;
  }

  /// Whether this worker reads from `holder` what that has promised, and would be served.
  [[nodiscard]] bool may_read(const small_worker& holder) const {
    if (!transfer_) return false;
    return std::ranges::any_of(transfer_->sources, [&](const small_source& source) {
      return source.at != read_progress::over && source.from.source == holder.core_.self() &&
             source.from.epoch == holder.memory_.promised_epoch && holder.admits(core_.self(), source.from);
    });
  }
  /// It had no room for a copy of this version.
  [[nodiscard]] bool has_refused(version_number version) const { return refused_.contains(version); }
  [[nodiscard]] bool bars(incarnation reader) const { return memory_.barred.contains(reader); }

  small_faults faults;

 private:
  /// What a look at a source's control block says.
  enum class sight : std::uint8_t { lease, early, other, none };

  /// What the session orders (worker/session_orders.hpp) is done to this.
  struct memory_shell {
    small_worker& worker;
    void show(version_number version, std::uint64_t epoch, std::span<const digest128>) {
      show_again(version, epoch);
    }
    void show_again(version_number version, std::uint64_t epoch) {
      small_memory& memory = worker.memory_;
      if (memory.content != version.value)
        worker.world_.violate({rule::bytes_of_version, worker.name_ + " shows version " + to_string(version) +
                                                           " with the bytes of " +
                                                           std::to_string(memory.content)});
      memory.state = control_state::shown;
      memory.version = version;
      memory.has_chunk = true;
      memory.epoch = memory.open_epoch = memory.promised_epoch = epoch;
    }
    void raise_epoch(std::uint64_t epoch) {
      worker.memory_.state = control_state::empty;
      worker.memory_.has_chunk = false;
      worker.memory_.epoch = epoch;
      worker.memory_.open_epoch = 0;
    }
    void cut_off(incarnation reader) {
      if (!worker.faults.cuts_nobody_off) worker.memory_.barred.insert(reader);
    }
    void revoke_all() {
      if (!worker.faults.cuts_nobody_off) ++worker.memory_.keys;
    }
    [[nodiscard]] readable_memory readable() const { return worker.region(); }
    [[nodiscard]] readable_memory describe_held() const { return worker.region(); }
  };

  [[nodiscard]] remote_region region() const {
    remote_region out;
    out.bytes = 1;
    std::memcpy(out.key.bytes.data(), &memory_.keys, sizeof memory_.keys);
    out.key.used_bytes = sizeof memory_.keys;
    return out;
  }
  [[nodiscard]] bool admits(incarnation reader, const messages::assignment& lease) const {
    std::uint64_t keys = 0;
    std::memcpy(&keys, lease.control.key.bytes.data(), sizeof keys);
    return !memory_.barred.contains(reader) && keys == memory_.keys;
  }

  void check_unread(const char* why) {
    if (memory_.promised_epoch == 0) return;
    if (const std::string reader = world_.reader_of(*this); !reader.empty())
      world_.violate({rule::permission, "bytes of " + name_ + " may change (" + why + ") although " + reader +
                                            " may still read them"});
    memory_.promised_epoch = 0;
  }

  // ---- orders

  template <typename Order>
  void perform(time_point now, const Order& order) {
    if constexpr (std::is_same_v<Order, session_actions::raise_epoch>) {
      if (!core_.is_revoking()) check_unread("its session raises the epoch");
    }
    memory_shell memory{*this};
    worker_detail::perform(memory, core_, now, order);
    if constexpr (std::is_same_v<Order, session_actions::cut_off_all>)
      check_unread("all its readers are cut off");
  }
  void perform(time_point now, const session_actions::start_pull& order) {
    transfer_.emplace();
    transfer_->version = order.version;
    transfer_->epoch = core_.epoch();
    transfer_->stalls_at = now + core_.options().request_retry;
    for (const messages::assignment& source : order.sources) transfer_->sources.push_back({source});
    core_.pull_started(now, region());
  }
  /// Nothing is open here.
  void perform(time_point, const session_actions::commit_pull&) {}
  void perform(time_point now, const session_actions::add_source& order) {
    if (!transfer_) return;
    if (order.released) release(now, order.released);
    transfer_->sources.push_back({order.source});
  }
  void perform(time_point now, const session_actions::release_source& order) {
    if (transfer_) release(now, order.released);
  }
  void perform(time_point now, const session_actions::stop_pull& order) {
    if (transfer_) end_transfer(now, false, order.reason);
  }
  /// No process here has room for a handed-over version.
  void perform(time_point now, const session_actions::offload& order) {
    refused_.insert(order.version);
    core_.offload_failed(now, order.version, {errc::unavailable, "no room"});
  }
  void perform(time_point, const session_actions::drop&) {}
  void perform(time_point, const session_actions::use_server&) {}

  // ---- the transfer

  [[nodiscard]] sight look(const small_source& source) const {
    const messages::assignment& lease = source.from;
    const small_worker* holder = world_.find(lease.source);
    if (holder == nullptr || !holder->admits(core_.self(), lease)) return sight::none;
    const small_memory& there = holder->memory_;
    const bool shows =
        there.state == control_state::shown || (there.state == control_state::receiving && lease.receiving);
    if (shows && there.epoch == lease.epoch && there.version == lease.version) return sight::lease;
    const bool is_early =
        lease.receiving &&
        (there.epoch < lease.epoch || (there.epoch == lease.epoch && there.state == control_state::empty));
    return is_early ? sight::early : sight::other;
  }
  [[nodiscard]] bool has_chunk(const small_source& source) const {
    const small_worker* holder = world_.find(source.from.source);
    return holder != nullptr && holder->memory_.has_chunk;
  }
  /// A read of the chunk waits for its confirmation.
  [[nodiscard]] bool has_taken() const {
    return std::ranges::any_of(transfer_->sources,
                               [](const small_source& each) { return each.at == read_progress::arrived; });
  }
  /// Takes whatever lies there now.
  void take(time_point now, std::size_t slot, sight seen) {
    if (seen == sight::none) return lose(now, slot);
    small_source& source = transfer_->sources[slot];
    const small_memory& there = world_.find(source.from.source)->memory_;
    transfer_->touched = true;
    memory_.content = there.content;
    source.by_lease = there.open_epoch == source.from.epoch;
    source.at = read_progress::arrived;
  }
  void lose(time_point now, std::size_t slot) {
    small_source& source = transfer_->sources[slot];
    source.at = read_progress::over;
    if (source.release) return core_.source_released(now, source.from.lease);
    core_.source_failed(now, source.from.lease, errc::source_lost, "it does not show the lease's version");
  }
  void release(time_point now, lease_id released) {
    for (small_source& source : transfer_->sources) {
      if (source.from.lease != released) continue;
      source.release = true;
      if (source.at == read_progress::arrived) continue;
      source.at = read_progress::over;
      core_.source_released(now, released);
    }
  }
  void confirm(time_point now, std::size_t slot, sight seen) {
    if (seen != sight::lease && !faults.skips_header_check) return lose(now, slot);
    const small_source& source = transfer_->sources[slot];
    if (!source.by_lease)
      world_.violate({rule::sources, name_ + " accepted a chunk that was read after its source let go"});
    if (memory_.content != transfer_->version.value)
      world_.violate({rule::received_chunks, name_ + " accepted version " + to_string(transfer_->version) +
                                                 " with the bytes of " + std::to_string(memory_.content)});
    memory_.has_chunk = true;
    if (source.release) core_.source_released(now, source.from.lease);
    end_transfer(now, true, {});
  }
  void end_transfer(time_point now, bool complete, const messages::status& reason) {
    const worker_detail::transfer_end end{transfer_->version, complete, !transfer_->touched, reason, {}};
    transfer_.reset();
    memory_shell memory{*this};
    worker_detail::report_end(memory, core_, now, end);
    if (!core_.held()) memory_.promised_epoch = 0;  // the pull was being stopped
  }

  std::string name_;
  services world_;
  session core_;
  small_memory memory_;
  std::set<version_number> refused_;
  std::optional<small_transfer> transfer_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
