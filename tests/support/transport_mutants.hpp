#pragma once
/// \file transport_mutants.hpp
/// Broken transports, each with one fault, which show that the conformance suite can fail.
///
/// `mutant<T>` wraps a conforming transport and breaks it as a plausible mistake would; its options select
/// the mistake. The test (tests/conformance/transport_mutants.cpp) requires that each mutant fails the rules
/// for its fault, and that every rule fails for some mutant.
///
/// `T` must be a transport whose `remote_region::base` is the address of the first byte and whose peers are
/// objects of this process: testing/memory_transport.hpp. Thread safety: like `T`.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/testing/conformance/read_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The fault of a mutant.
enum class fault {
  none,                  ///< nothing: the wrapper itself conforms
  cut_at_limit,          ///< a read of exactly `mutant_limit_bytes` lacks its last byte
  drops_completions,     ///< every seventh completion of a queue is lost
  doubles_completions,   ///< every seventh completion of a queue comes twice
  drops_errors,          ///< reads that fail never complete
  drops_peer_lost,       ///< reads from a dead or silent peer never complete
  loses_overflow,        ///< completions that `poll` has no room for are lost
  completes_early,       ///< the completion comes before the bytes
  tears,                 ///< half of the bytes arrive, and the read ends `ok`
  writes_beside,         ///< the byte after the target changes too
  misses_target_bounds,  ///< writes beyond the end of the local region
  ignores_wake,          ///< `wake` does nothing
  deaf_while_reading,    ///< with reads outstanding, nothing ends a `wait`
  sleeps_through,        ///< `wait` always sleeps for its whole time
  mixes_queues,          ///< completions go to the queue of the process that polls next
  ignores_keys,          ///< the base address alone decides what is read
  ignores_bounds,        ///< the key alone decides whether bytes are read
  reads_local_regions,   ///< peers can read regions for the process's own reads
  breaks_on_denial,      ///< a denied read breaks the endpoint, although the capability says otherwise
  leaks_count,           ///< `registered_bytes` does not decrease
  leaks_access,          ///< a region can be read after its deregistration
  revoke_does_nothing,   ///< old keys keep working and are described again
  revoke_keeps_old,      ///< there is a new key, and the old one keeps working
  ignores_cut_off,       ///< `cut_off` does nothing
  cuts_off_new_only,     ///< `cut_off` refuses new connections and keeps the old ones
  rename_forgets,        ///< the same, and `rename` forgets whom it has refused
  swaps_reads,           ///< posts a read behind the next one, if their order matters
  posts_when_full,       ///< `queue_full` is returned, but the read is done and completes
  no_rollback,           ///< ranges before the bad range stay registered
  any_incarnation,       ///< connects to any process at the address
  keeps_its_name,        ///< `rename` does nothing
  never_dismisses,       ///< `dismiss` does nothing
  reads_as_the_first,    ///< `connect` ignores as whom it is called
  connects_to_nobody,    ///< `connect` succeeds where no process listens
  forgets_cancelled,     ///< reads of a destroyed endpoint never complete
  /// Reads of a destroyed endpoint bring their bytes after they have completed as cancelled.
  writes_after_cancel,
  writes_after_queue,   ///< bytes of a destroyed queue's reads arrive later
  closes_neighbours,    ///< a destroyed endpoint cancels what other endpoints of its queue read
  cuts_off_neighbours,  ///< a source that cuts a reader off ends what its queue reads elsewhere
  loses_neighbours,     ///< a source that dies ends what its queue reads elsewhere
  truncates_ids,        ///< completions have the lower 32 bits of their ids
  mixes_top_bits,       ///< of two reads whose ids differ in the upper 16 bits only, the later one is known
  counts_keys,          ///< keys are 1, 2, 3
  throws_a_number,      ///< a registration that fails throws an int
  throws_in_threads,    ///< so does `make_queue` in another thread than the transport's
  waits_for_ever,       ///< `wait` ignores its time-out
};

inline constexpr std::uint64_t mutant_limit_bytes = 100'000;

/// What the type of a mutant declares in addition to its base. Capabilities are constants of the type, faults
/// are not, so that the suite is compiled once for most mutants.
enum class mutant_claim { none, limited, sends_by_reference };

template <transport T, mutant_claim claim = mutant_claim::none>
class mutant {
  /// A registered region, at an address that does not change.
  struct region_core;
  /// The state that a transport object and its regions share.
  struct transport_core {
    incarnation self{};
    fault kind = fault::none;
    T base;
    std::thread::id made_by = std::this_thread::get_id();
    std::atomic<std::uint64_t> registered_bytes{0};
    std::mutex mutex;  ///< guards the rest
    std::vector<typename T::memory_region> leaked;
    std::set<incarnation> refused;
    std::deque<completion> mixed;
    std::size_t mixed_outstanding = 0;
    transport_core(const typename T::options& of_base, fault what, incarnation holder)
        : self{holder}, kind{what}, base{of_base, holder} {}
  };
  struct region_core {
    std::shared_ptr<transport_core> owner;
    typename T::memory_region base;
    memory_range range{};
  };
  struct tracked_read {
    const region_core* into = nullptr;
    std::byte* target = nullptr;
    const std::byte* source = nullptr;
    std::uint64_t bytes = 0;
  };
  /// The state of all mutants of this kind in this process.
  struct world {
    std::mutex mutex;
    std::set<region_core*> regions;
    std::map<std::string, std::weak_ptr<transport_core>> transports;
    std::vector<tracked_read> late;
    std::vector<remote_key> counted;  ///< by their numbers, from 1
    static world& instance() {
      static world all;
      return all;
    }
    void write_late() {
      const std::lock_guard lock{mutex};
      for (const tracked_read& each : late) std::memmove(each.target, each.source, each.bytes);
      late.clear();
    }
  };

  static constexpr bool is_limited = claim == mutant_claim::limited;
  [[nodiscard]] static constexpr transport_capabilities claimed() {
    transport_capabilities changed = T::capabilities;
    if (is_limited) changed.max_read_bytes = mutant_limit_bytes;
    if (claim == mutant_claim::sends_by_reference) changed.sends_by_reference = true;
    return changed;
  }

 public:
  using concept_tag = transport_tag;
  struct options {
    fault kind = fault::none;
    typename T::options base{};
  };
  static constexpr std::string_view name = "mutant";
  static constexpr transport_capabilities capabilities = claimed();

  class memory_region {
   public:
    memory_region(memory_region&&) noexcept = default;
    memory_region& operator=(memory_region&& other) noexcept {
      if (this != &other) {
        release();
        core_ = std::move(other.core_);
      }
      return *this;
    }
    ~memory_region() { release(); }
    [[nodiscard]] memory_range range() const noexcept { return core_->range; }

   private:
    friend class mutant;
    explicit memory_region(std::unique_ptr<region_core> core) : core_{std::move(core)} {
      const std::lock_guard lock{world::instance().mutex};
      world::instance().regions.insert(core_.get());
    }
    void release() noexcept {
      if (!core_) return;
      const fault kind = core_->owner->kind;
      {
        const std::lock_guard lock{world::instance().mutex};
        world::instance().regions.erase(core_.get());
        std::erase_if(world::instance().late, [&](const auto& each) { return each.into == core_.get(); });
      }
      if (kind != fault::leaks_count) core_->owner->registered_bytes -= core_->range.bytes;
      if (kind == fault::leaks_access) leak(std::move(core_->base), *core_->owner);
      core_.reset();
    }
    std::unique_ptr<region_core> core_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return expected_; }
    [[nodiscard]] bool usable() const noexcept { return base_.usable() && !*denied_; }
    [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept { return base_.ordered_read_bytes(); }

   private:
    friend class mutant;
    endpoint(typename T::endpoint base, incarnation expected, std::shared_ptr<bool> denied)
        : base_{std::move(base)}, expected_{expected}, denied_{std::move(denied)} {}
    typename T::endpoint base_;
    incarnation expected_;
    std::shared_ptr<bool> denied_;  ///< shared with the queue
  };

  class queue {
   public:
    queue(queue&&) noexcept = default;
    queue& operator=(queue&&) noexcept = default;
    ~queue() {
      if (!state_ || state_->owner->kind != fault::writes_after_queue) return;
      const std::lock_guard lock{world::instance().mutex};
      for (const auto& [id, read] : state_->tracked) world::instance().late.push_back(read);
    }

    post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                          const remote_slice& from, request_id id) noexcept {
      state& own = *state_;
      const fault kind = own.owner->kind;
      if (kind == fault::writes_after_queue || kind == fault::writes_after_cancel)
        world::instance().write_late();
      const bool full = count_outstanding() >= own.depth;
      if (full && kind != fault::posts_when_full) return post_result::queue_full;
      remote_region region = *from.region;
      remote_slice slice{&region, from.offset, from.bytes};
      const memory_range target = into.range();
      const bool fits_target = offset <= target.bytes && slice.bytes <= target.bytes - offset;
      const bool fits_source = slice.offset <= region.bytes && slice.bytes <= region.bytes - slice.offset;
      const std::uint64_t from_address = region.base + slice.offset;  // may wrap: that is the fault
      const tracked_read read{
          into.core_.get(),
          reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(target.data) + offset),
          reinterpret_cast<const std::byte*>(from_address), slice.bytes};
      if (kind == fault::ignores_keys) substitute_key(region);
      if (kind == fault::counts_keys) region.key = key_of_number(region.key);
      if (kind == fault::mixes_top_bits) own.last_of[low_bits(id)] = id;
      if (kind == fault::ignores_bounds) {
        if (fits_target && is_outside_of_its_key(region, from_address, slice.bytes)) return do_now(read, id);
      }
      if (kind == fault::misses_target_bounds) {
        if (!fits_target && fits_source) return do_now(read, id);
      }
      if (kind == fault::tears) {
        if (fits_target && fits_source) slice.bytes -= slice.bytes / 2;
      }
      if (kind == fault::cut_at_limit) {
        if (slice.bytes == mutant_limit_bytes) slice.bytes -= 1;
      }
      if (is_limited) {
        if (slice.bytes > mutant_limit_bytes) {
          own.extra.push_back({id, completion_status::local_error});
          return post_result::posted;
        }
      }
      if (kind == fault::swaps_reads && slice.bytes == conformance_rules::ordered_chunk_bytes) {
        own.behind = [&own, &connection, core = into.core_.get(), offset, region, at = slice.offset,
                      bytes = slice.bytes, id] {
          static_cast<void>(
              own.base.post_read(connection.base_, core->base, offset, {&region, at, bytes}, id));
        };
        return post_result::posted;
      }
      if (own.base.post_read(connection.base_, into.core_->base, offset, slice, id) ==
          post_result::queue_full)
        return post_result::queue_full;
      own.tracked[id] = read;
      own.denied[id] = connection.denied_;
      if (kind == fault::completes_early) own.extra.push_back({id, completion_status::ok});
      if (kind == fault::mixes_queues) {
        const std::lock_guard lock{own.owner->mutex};
        ++own.owner->mixed_outstanding;
        ++own.owed;
      }
      return full ? post_result::queue_full : post_result::posted;
    }

    std::size_t poll(std::span<completion> completions) noexcept {
      state& own = *state_;
      const fault kind = own.owner->kind;
      std::size_t filled = 0;
      while (filled < completions.size() && !own.extra.empty()) {
        completions[filled++] = own.extra.front();
        own.extra.pop_front();
      }
      if (kind == fault::completes_early && filled > 0) return filled;
      if (own.behind && own.base.outstanding() == 0) {  // the next one has completed
        std::this_thread::sleep_for(std::chrono::microseconds{50});
        std::exchange(own.behind, {})();
      }
      std::array<completion, 64> batch{};
      const std::size_t room = std::min(completions.size() - filled, batch.size());
      const std::size_t wanted = kind == fault::loses_overflow ? batch.size() : room;
      const std::size_t count = own.base.poll(std::span{batch}.first(wanted));
      if (kind == fault::mixes_queues) return take_mixed(std::span{batch}.first(count), completions);
      for (const completion& each : std::span{batch}.first(count)) {
        const bool seventh = ++own.seen % 7 == 0;
        note(each);
        if (is_lost(kind, each, seventh)) continue;
        if (filled < completions.size()) completions[filled++] = changed(each);
        if (kind == fault::doubles_completions && seventh) own.extra.push_back(each);
      }
      return filled;
    }

    void wait(duration timeout) noexcept {
      const fault kind = state_->owner->kind;
      if (kind == fault::sleeps_through || (kind == fault::deaf_while_reading && count_outstanding() > 0)) {
        std::this_thread::sleep_for(timeout);
      } else if (kind == fault::mixes_queues) {
        std::this_thread::sleep_for(std::min<duration>(timeout, std::chrono::milliseconds{1}));
        state_->base.wait(std::chrono::nanoseconds{0});
      } else if (kind == fault::waits_for_ever) {
        while (count_outstanding() == 0) state_->base.wait(std::chrono::hours{1});
      } else {
        state_->base.wait(state_->extra.empty() ? timeout : duration::zero());
      }
    }
    void wake() noexcept {
      if (state_->owner->kind != fault::ignores_wake) state_->base.wake();
    }
    [[nodiscard]] std::size_t outstanding() const noexcept {
      if (state_->owner->kind == fault::mixes_queues) {
        const std::lock_guard lock{state_->owner->mutex};
        return state_->owner->mixed_outstanding;
      }
      return count_outstanding();
    }

   private:
    friend class mutant;
    struct state {
      typename T::queue base;
      std::shared_ptr<transport_core> owner;
      std::size_t depth = 0;
      std::size_t seen = 0;
      std::size_t owed = 0;            ///< of a mixed queue: reads posted here and not yet polled here
      std::function<void()> behind{};  ///< posts the read that waits for the next one
      std::deque<completion> extra{};  ///< completions that the base does not have
      std::map<request_id, tracked_read> tracked{};
      std::map<request_id, std::shared_ptr<bool>> denied{};
      std::map<request_id, completion_status> doomed{};  ///< how reads of other endpoints will end
      std::map<request_id, request_id> last_of{};        ///< by the lower bits
    };
    explicit queue(std::unique_ptr<state> own) : state_{std::move(own)} {}

    [[nodiscard]] std::size_t count_outstanding() const noexcept {
      const fault kind = state_->owner->kind;
      if (kind == fault::mixes_queues) return state_->owed;
      const std::size_t of_base = kind == fault::completes_early ? 0 : state_->base.outstanding();
      return of_base + state_->extra.size() + (state_->behind ? 1 : 0);
    }
    post_result do_now(const tracked_read& read, request_id id) noexcept {
      std::memmove(read.target, read.source, read.bytes);
      state_->extra.push_back({id, completion_status::ok});
      return post_result::posted;
    }
    /// Gives the region the key that is valid for its base address, if there is such a key.
    static void substitute_key(remote_region& region) noexcept {
      const std::lock_guard lock{world::instance().mutex};
      for (const region_core* each : world::instance().regions) {
        const remote_region valid = each->owner->base.describe(each->base);
        if (valid.base == region.base) region = {valid.base, std::max(valid.bytes, region.bytes), valid.key};
      }
    }
    [[nodiscard]] static bool is_outside_of_its_key(const remote_region& region, std::uint64_t address,
                                                    std::uint64_t bytes) noexcept {
      const std::lock_guard lock{world::instance().mutex};
      for (const region_core* each : world::instance().regions) {
        const remote_region valid = each->owner->base.describe(each->base);
        if (!(valid.key == region.key)) continue;
        return address < valid.base || address - valid.base > valid.bytes ||
               bytes > valid.bytes - (address - valid.base);
      }
      return false;
    }
    /// Does what the fault adds when a read of the base completes.
    void note(const completion& done) noexcept {
      const fault kind = state_->owner->kind;
      const auto entry = state_->tracked.find(done.id);
      if (entry == state_->tracked.end()) return;
      const tracked_read read = entry->second;
      state_->tracked.erase(entry);
      const auto denied = state_->denied.extract(done.id);
      if (kind == fault::breaks_on_denial && done.status == completion_status::access_denied)
        *denied.mapped() = true;
      if (kind == fault::writes_beside && done.status == completion_status::ok)
        read.target[read.bytes] ^= std::byte{1};
      if (kind == fault::writes_after_cancel && done.status == completion_status::cancelled) {
        const std::lock_guard lock{world::instance().mutex};
        world::instance().late.push_back(read);
      }
    }
    [[nodiscard]] static request_id low_bits(request_id id) noexcept { return id & ((1ull << 48) - 1); }
    /// What the caller sees of a completion.
    [[nodiscard]] completion changed(completion done) noexcept {
      const fault kind = state_->owner->kind;
      if (kind == fault::truncates_ids) done.id &= UINT32_MAX;
      if (kind == fault::mixes_top_bits) done.id = state_->last_of.at(low_bits(done.id));
      const bool spreads =
          (kind == fault::closes_neighbours && done.status == completion_status::cancelled) ||
          (kind == fault::cuts_off_neighbours && done.status == completion_status::cut_off) ||
          (kind == fault::loses_neighbours && done.status == completion_status::peer_lost);
      if (spreads) {
        for (const auto& [id, read] : state_->tracked) state_->doomed[id] = done.status;
      }
      if (const auto end = state_->doomed.extract(done.id); end) done.status = end.mapped();
      return done;
    }
    /// No key, if there is none of this number.
    [[nodiscard]] static remote_key key_of_number(const remote_key& described) noexcept {
      std::uint64_t number = 0;
      if (described.used_bytes == sizeof number) std::memcpy(&number, described.bytes.data(), sizeof number);
      const std::lock_guard lock{world::instance().mutex};
      const std::vector<remote_key>& counted = world::instance().counted;
      return number == 0 || number > counted.size() ? remote_key{} : counted[number - 1];
    }
    [[nodiscard]] static bool is_lost(fault kind, const completion& done, bool seventh) noexcept {
      switch (kind) {
        case fault::drops_completions:
          return seventh;
        case fault::drops_errors:
          return done.status != completion_status::ok;
        case fault::drops_peer_lost:
          return done.status == completion_status::peer_lost;
        case fault::forgets_cancelled:
          return done.status == completion_status::cancelled;
        case fault::completes_early:
          return true;
        default:
          return false;
      }
    }
    /// One call puts completions into the common list, the next takes completions from it.
    std::size_t take_mixed(std::span<const completion> came, std::span<completion> completions) noexcept {
      const std::lock_guard lock{state_->owner->mutex};
      std::deque<completion>& mixed = state_->owner->mixed;
      mixed.insert(mixed.end(), came.begin(), came.end());
      if (!came.empty()) return 0;
      std::size_t filled = 0;
      while (filled < completions.size() && !mixed.empty()) {
        completions[filled++] = mixed.front();
        mixed.pop_front();
        --state_->owner->mixed_outstanding;
        if (state_->owed > 0) --state_->owed;
      }
      return filled;
    }
    std::unique_ptr<state> state_;
  };

  mutant(const options& chosen, incarnation self)
      : core_{std::make_shared<transport_core>(chosen.base, chosen.kind, self)} {
    const std::lock_guard lock{world::instance().mutex};
    world::instance().transports[core_->base.address().text] = core_;
  }
  mutant(const mutant&) = delete;
  mutant& operator=(const mutant&) = delete;

  /// The conforming transport, which tests can kill or stall.
  [[nodiscard]] T& base() noexcept { return core_->base; }
  [[nodiscard]] transport_address address() const { return core_->base.address(); }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    const fault kind = core_->kind;
    if (kind == fault::reads_local_regions) access = region_access::both;
    std::vector<typename T::memory_region> bases;
    if (kind == fault::no_rollback) {
      for (std::size_t i = 0; i < ranges.size(); ++i) {
        try {
          for (auto& each : core_->base.register_memory(ranges.subspan(i, 1), access))
            bases.push_back(std::move(each));
        } catch (const error& thrown) {
          for (auto& each : bases) {
            core_->registered_bytes += each.range().bytes;
            leak(std::move(each), *core_);
          }
          throw error{thrown.code(), "range " + std::to_string(i) + ": " + thrown.sentence()};
        }
      }
    } else if (kind == fault::throws_a_number) {
      try {
        bases = core_->base.register_memory(ranges, access);
      } catch (const error&) {
        throw 7;
      }
    } else {
      bases = core_->base.register_memory(ranges, access);
    }
    std::vector<memory_region> regions;
    regions.reserve(bases.size());
    for (auto& each : bases) {
      const memory_range range = each.range();
      regions.push_back(
          memory_region{std::unique_ptr<region_core>{new region_core{core_, std::move(each), range}}});
      core_->registered_bytes += range.bytes;
    }
    return regions;
  }
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return core_->registered_bytes; }
  [[nodiscard]] remote_region describe(const memory_region& region) const {
    remote_region described = core_->base.describe(region.core_->base);
    if (core_->kind == fault::counts_keys) described.key = number_of_key(described.key);
    return described;
  }
  void revoke(memory_region& region) noexcept {
    const fault kind = core_->kind;
    if (kind == fault::revoke_does_nothing) return;
    if (kind == fault::revoke_keeps_old) {
      auto fresh = core_->base.register_memory({&region.core_->range, 1}, region_access::both);
      leak(std::exchange(region.core_->base, std::move(fresh.front())), *core_);
      return;
    }
    core_->base.revoke(region.core_->base);
  }
  void cut_off(incarnation peer) noexcept {
    const fault kind = core_->kind;
    if (kind == fault::ignores_cut_off) return;
    if (kind == fault::cuts_off_new_only || kind == fault::rename_forgets) {
      const std::lock_guard lock{core_->mutex};
      core_->refused.insert(peer);
      return;
    }
    core_->base.cut_off(peer);
  }

  void admit(incarnation self) { core_->base.admit(self); }
  void rename(incarnation self, incarnation next) noexcept {
    if (core_->kind == fault::keeps_its_name) return;
    if (core_->self == self) core_->self = next;
    if (core_->kind == fault::rename_forgets) {
      const std::lock_guard lock{core_->mutex};
      core_->refused.clear();
    }
    core_->base.rename(self, next);
  }
  void dismiss(incarnation self) noexcept {
    if (core_->kind != fault::never_dismisses) core_->base.dismiss(self);
  }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    if (core_->kind == fault::throws_in_threads && std::this_thread::get_id() != core_->made_by) throw 7;
    constexpr std::size_t spare = 512;  // for reads that the faults post and do not count
    return queue{std::unique_ptr<typename queue::state>{
        new typename queue::state{core_->base.make_queue(depth + spare), core_, depth}}};
  }

  [[nodiscard]] endpoint connect(queue& own_queue, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    if (!self || core_->kind == fault::reads_as_the_first) self = core_->self;
    incarnation expected = peer;
    transport_address where = address;
    if (const std::shared_ptr<transport_core> there = find(address)) {
      const std::lock_guard lock{there->mutex};
      if (there->refused.contains(self)) throw error{errc::transport_failed, "cut off"};
      if (core_->kind == fault::any_incarnation) expected = there->self;
    } else if (core_->kind == fault::connects_to_nobody) {
      expected = core_->self;
      where = core_->base.address();
    }
    return endpoint{core_->base.connect(own_queue.state_->base, where, expected, timeout, self), peer,
                    std::make_shared<bool>(false)};
  }

 private:
  static void leak(typename T::memory_region region, transport_core& owner) noexcept {
    const std::lock_guard lock{owner.mutex};
    owner.leaked.push_back(std::move(region));
  }
  [[nodiscard]] static remote_key number_of_key(const remote_key& key) {
    const std::lock_guard lock{world::instance().mutex};
    std::vector<remote_key>& counted = world::instance().counted;
    const auto found = std::find(counted.begin(), counted.end(), key);
    const auto number = static_cast<std::uint64_t>(found - counted.begin()) + 1;
    if (found == counted.end()) counted.push_back(key);
    remote_key out;
    std::memcpy(out.bytes.data(), &number, out.used_bytes = sizeof number);
    return out;
  }
  [[nodiscard]] static std::shared_ptr<transport_core> find(const transport_address& address) {
    const std::lock_guard lock{world::instance().mutex};
    const auto entry = world::instance().transports.find(address.text);
    return entry == world::instance().transports.end() ? nullptr : entry->second.lock();
  }
  std::shared_ptr<transport_core> core_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
