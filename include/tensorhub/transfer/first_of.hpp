#pragma once
/// \file first_of.hpp
/// `first_of<A, B, ...>`: each pair of workers uses the first transport of a list that connects them.
///
///     using data = tensorhub::first_of<transports::same_host, transports::verbs, transports::tcp>;
///     tensorhub::hub<data>::publisher trainer{{...}, data::with(tcp_options, verbs_options)};
///
/// A process listens with every member that it can start (a machine without a network adapter has no
/// `verbs`), registers memory with all of them, and gives its peers all addresses and keys at once. A reader
/// tries the members in the order of the list and uses the first that connects. A member is not tried where
/// it cannot reach the peer: on another machine without `crosses_hosts`, in another datacenter without
/// `crosses_datacenters`. `endpoint::why()` says which members were tried and why they failed, and so does
/// the error if no member connects. A member that failed where a later one succeeded is tried after the
/// others with that peer for `retry_after`. If it only took too long (many peers may connect at once), it has
/// its turn again after `attempt_timeout`, after the next failure of that kind after twice that time, and so
/// on.
///
/// `options::required_encryption` fails closed: with it a member that does not encrypt is not used where it
/// must not be, and the error says so.
///
/// On the data path a branch over the list leads each read to the member of its endpoint: there is no virtual
/// call and no allocation, and a key is parsed only when it differs from the key of the previous read. A
/// composition promises what all of its members promise (see `capabilities`); the conformance suite runs on
/// it like on any transport.
///
/// Registration is all or nothing over all started members: if one member cannot register memory, the call
/// fails with that member's advice instead of falling back silently to a slower member. `options::enabled`
/// leaves a member out. Device memory is an exception, because a member can register it on some machines
/// only: if the first call of `register_memory` has device memory that a member cannot register, that member
/// is stopped, as if it could not have been started. From then on `not_started()` has the reason, `address()`
/// does not name the member, and peers that know the old address fail to connect to it and try the next
/// member. A later call must not stop a member, since peers may already be reading through it: it leaves the
/// member out of the regions of that call. `address_of` such a region does not name it, and this process
/// reads no more through it.
///
/// Thread safety: as concept `transport` requires.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/concepts/guarded_transport.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/telling_transport.hpp"
#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/machine_id.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/first_of/address.hpp"
#include "tensorhub/transfer/first_of/name.hpp"
#include "tensorhub/transfer/first_of/queue.hpp"
#include "tensorhub/transfer/first_of/refusals.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/transport_options.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Between which processes only members that encrypt are used, whatever else would connect. What stays on a
/// machine is not encrypted.
enum class encryption : std::uint8_t {
  nowhere,             ///< the order of the list decides
  across_datacenters,  ///< a peer with another datacenter, or where either says none, counts as far away
  everywhere,          ///< other members that cross hosts are not even started
};

template <transport... Members>
class first_of {
  static_assert(sizeof...(Members) >= 1 && sizeof...(Members) <= first_of_detail::most_members,
                "first_of takes 1 to 16 transports");
  static constexpr std::size_t count = sizeof...(Members);
  using indices = std::make_index_sequence<count>;
  template <std::size_t I>
  using member = std::tuple_element_t<I, std::tuple<Members...>>;

 public:
  using concept_tag = transport_tag;
  static constexpr std::string_view name = first_of_detail::composed_name<Members...>();
  static constexpr transport_capabilities capabilities{
      .max_read_bytes = std::min({Members::capabilities.max_read_bytes...}),
      .max_region_bytes = std::min({Members::capabilities.max_region_bytes...}),
      .survives_access_errors = (Members::capabilities.survives_access_errors && ...),
      .crosses_hosts = (Members::capabilities.crosses_hosts || ...),
      .crosses_datacenters = (Members::capabilities.crosses_datacenters || ...),
      .reads_device_memory = (Members::capabilities.reads_device_memory || ...),
      .uses_backing_file = (Members::capabilities.uses_backing_file || ...),
      .sends_by_reference = (Members::capabilities.sends_by_reference || ...),
      .revokes_cheaply = (Members::capabilities.revokes_cheaply && ...),
      .encrypts = (Members::capabilities.encrypts && ...)};

  struct options {
    std::tuple<typename Members::options...> members{};  ///< in the order of the list
    std::array<bool, count> enabled = all_enabled();     ///< false: this process does not use that member
    location here{};  ///< if it is empty, a worker fills it from its own options; the members get it too
    /// Bounds each attempt but the last, which may take all of the caller's remaining time; the others leave
    /// at least half of it.
    std::chrono::milliseconds attempt_timeout{1500};
    std::chrono::milliseconds retry_after{60'000};  ///< per peer: so long a member that failed is tried last
    encryption required_encryption = encryption::nowhere;
    bool operator==(const options&) const
        requires(std::equality_comparable<typename Members::options>&&...) = default;
  };

  /// Options of some members, selected by type; the other members have their defaults.
  template <typename... Some>
  [[nodiscard]] static options with(Some... some) {
    options out;
    ((std::get<Some>(out.members) = std::move(some)), ...);
    return out;
  }

  class memory_region {
    friend class first_of;
    struct pass_key {};

   public:
    memory_region(pass_key, const memory_range& range) : range_{range} {}  ///< only first_of can construct it
    [[nodiscard]] memory_range range() const noexcept { return range_; }

   private:
    friend class first_of_detail::queue<first_of, Members...>;
    [[nodiscard]] bool has_part(std::size_t member) const noexcept {
      return [&]<std::size_t... I>(std::index_sequence<I...>) {
        return ((I == member && std::get<I>(parts_).has_value()) || ...);
      }
      (indices{});
    }
    [[nodiscard]] bool has_parts() const noexcept {
      return std::apply([](const auto&... each) { return (each.has_value() || ...); }, parts_);
    }
    std::tuple<std::optional<typename Members::memory_region>...> parts_;
    memory_range range_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return peer_; }
    [[nodiscard]] bool usable() const noexcept {
      return told<bool>([](const auto& part) -> decltype(part.usable()) { return part.usable(); });
    }
    /// This and the next two: as the member in use says.
    [[nodiscard]] bool kept_by_transport() const noexcept {
      return told<bool>(
          [](const auto& part) -> decltype(part.kept_by_transport()) { return part.kept_by_transport(); });
    }
    [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept {
      return told<std::uint64_t>(
          [](const auto& part) -> decltype(part.ordered_read_bytes()) { return part.ordered_read_bytes(); });
    }
    [[nodiscard]] duration round_trip() const noexcept {
      return told<duration>(
          [](const auto& part) -> decltype(part.round_trip()) { return part.round_trip(); });
    }
    /// The name of the member in use.
    [[nodiscard]] std::string_view through() const noexcept {
      static constexpr std::array<std::string_view, count> names{Members::name...};
      return names[part_.index() - 1];
    }
    /// One line: the member in use, the reason why each member before it is not in use, and the remarks of
    /// the member in use about itself (same_host: why memory is staged, which is known
    /// only after the first read).
    [[nodiscard]] std::string why() const {
      std::string reasons = refused_;
      const auto own = told<std::string>([](const auto& part) -> decltype(part.why()) { return part.why(); });
      if (!own.empty()) reasons += (reasons.empty() ? "" : "; ") + own;
      return std::string{through()} + (reasons.empty() ? "" : " (" + reasons + ")");
    }

   private:
    friend class first_of;
    friend class first_of_detail::queue<first_of, Members...>;
    explicit endpoint(incarnation peer) : peer_{peer} {}
    /// What `ask` returns of the member's endpoint; without one, or if it has nothing to ask: `Told{}`.
    template <typename Told, typename Ask>
    [[nodiscard]] Told told(Ask&& ask) const {
      return std::visit(
          [&](const auto& part) -> Told {
            if constexpr (std::invocable<Ask&, decltype(part)>)
              return ask(part);
            else
              return {};
          },
          part_);
    }
    incarnation peer_;
    std::variant<std::monostate, typename Members::endpoint...> part_;  ///< index 0 only during construction
    std::string refused_;         ///< the members before the one in use, with the reasons
    remote_region last_whole_{};  ///< the last description used, and the member's own part of it
    remote_region last_part_{};
  };

  using queue = first_of_detail::queue<first_of, Members...>;

  /// Starts every member that can be started; throws `transport_failed`, with all reasons, if none can, and
  /// what a member throws that cannot listen at the port that its options name.
  explicit first_of(options chosen = {}, incarnation self = {}) : options_{std::move(chosen)} {
    place_.machine = detail::machine_id();
    place_.datacenter = options_.here.datacenter;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (start<I>(self), ...);
    }
    (indices{});
    if (place_.members.empty())
      throw error(errc::transport_failed, std::string{name} + ": none can be started: " + refusals_.text());
    update_address();
  }

  /// The reasons why members were not started in this process, or do not take all of its memory, in one
  /// sentence; empty if there are none.
  [[nodiscard]] std::string not_started() const {
    const std::shared_lock lock{members_mutex_};
    return refusals_.text();
  }

  [[nodiscard]] transport_unused unused_told() const {
    bool crosses = false;
    each_started([&]<std::size_t I>(const auto&) { crosses |= member<I>::capabilities.crosses_hosts; });
    return {not_started(), !crosses && (Members::capabilities.crosses_hosts || ...)};
  }

  [[nodiscard]] transport_address address() const {
    const std::shared_lock lock{members_mutex_};
    return address_;
  }

  /// With those members only that have registered this region.
  [[nodiscard]] transport_address address_of(const memory_region& region) const {
    const std::shared_lock lock{members_mutex_};
    first_of_detail::place there = place_;
    std::erase_if(there.members, [&](const auto& each) { return !region.has_part(each.index); });
    return there.members.size() == place_.members.size()
               ? address_
               : transport_address{first_of_detail::encode(there), address_.capability};
  }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (const memory_range& range : ranges) regions.emplace_back(typename memory_region::pass_key{}, range);
    first_of_detail::refusals left_out;
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (register_with<I>(regions, ranges, access, left_out), ...);
    }
    (indices{});
    if (!regions.empty() && !regions.front().has_parts())
      throw error(errc::transport_failed,
                  std::string{name} + ": no member takes this memory: " + left_out.text());
    leave_out(left_out);
    if (access != region_access::local_write && !regions.empty() && !describe_all(regions.front()))
      throw error(errc::limit_exceeded, std::string{name} + ": the members' keys together do not fit into " +
                                            std::to_string(limits::remote_key_bytes) +
                                            " bytes: use fewer members, rails or pieces per region");
    return regions;
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept {
    std::uint64_t bytes = 0;  // every started member holds every region
    each_started([&]<std::size_t I>(const auto& started) { bytes = started.registered_bytes(); });
    return bytes;
  }

  [[nodiscard]] remote_region describe(const memory_region& region) const {
    auto all = describe_all(region);
    if (!all)
      throw error(errc::limit_exceeded, std::string{name} + ": the members' keys together do not fit");
    return *all;
  }

  void revoke(memory_region& region) noexcept {
    each_started([&]<std::size_t I>(auto& started) {
      if (auto& part = std::get<I>(region.parts_)) started.revoke(*part);
    });
  }

  void cut_off(incarnation peer) noexcept {
    each_started([&]<std::size_t I>(auto& started) { started.cut_off(peer); });
  }

  void admit(incarnation self) requires(shared_transport<Members>&&...) {
    each_started([&]<std::size_t I>(auto& started) { started.admit(self); });
  }
  void rename(incarnation self, incarnation next) noexcept requires(shared_transport<Members>&&...) {
    each_started([&]<std::size_t I>(auto& started) { started.rename(self, next); });
  }
  void dismiss(incarnation self) noexcept requires(shared_transport<Members>&&...) {
    each_started([&]<std::size_t I>(auto& started) { started.dismiss(self); });
  }

  /// Applies to all started members that check capabilities. The others accept any process that knows their
  /// address.
  void require_capability(std::span<const std::byte> key) requires(guarded_transport<Members> || ...) {
    each_started([&]<std::size_t I>(auto& started) {
      if constexpr (guarded_transport<member<I>>) started.require_capability(key);
    });
  }
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept
      requires(guarded_transport<Members> || ...) {
    each_started([&]<std::size_t I>(auto& started) {
      if constexpr (guarded_transport<member<I>>) started.expire_capabilities(self, epoch);
    });
  }
  [[nodiscard]] std::uint64_t refused_connections() const noexcept
      requires(guarded_transport<Members> || ...) {
    std::uint64_t sum = 0;
    each_started([&]<std::size_t I>(const auto& started) {
      if constexpr (guarded_transport<member<I>>) sum += started.refused_connections();
    });
    return sum;
  }

  /// Of all started members that say something: the counts together, and the words of each.
  [[nodiscard]] transport_refusal refusal_told() const requires(telling_transport<Members> || ...) {
    transport_refusal sum;
    each_started([&]<std::size_t I>(const auto& started) {
      if constexpr (telling_transport<member<I>>) sum += started.refusal_told();
    });
    return sum;
  }
  [[nodiscard]] transport_renewal renewal_told() const requires(telling_transport<Members> || ...) {
    transport_renewal sum;
    each_started([&]<std::size_t I>(const auto& started) {
      if constexpr (telling_transport<member<I>>) sum += started.renewal_told();
    });
    return sum;
  }
  [[nodiscard]] transport_shortage shortage_told() const
      requires(shortage_telling_transport<Members> || ...) {
    transport_shortage sum;
    each_started([&]<std::size_t I>(const auto& started) {
      if constexpr (shortage_telling_transport<member<I>>) sum += started.shortage_told();
    });
    return sum;
  }

  [[nodiscard]] queue make_queue(std::size_t depth) { return queue{depth}; }

  /// `self`: the incarnation that reads. Members that are no `shared_transport` have one only, and ignore it.
  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    const auto where = first_of_detail::decode(address.text, count);
    if (!where)
      throw error(errc::transport_failed,
                  std::string{name} + ": '" + first_of_detail::readable_address(address.text).substr(0, 200) +
                      "' is not an address of a first_of: the peer uses another transport");
    endpoint made{peer};
    attempts tried;
    const auto connects = [&]<std::size_t... I>(std::index_sequence<I...>) {
      return (attempt<I>(made, on, *where, {address.capability, self, peer}, until, tried) || ...);
    };
    const bool is_made = connects(indices{});
    bool is_late = tried.late != 0;
    if (!is_made && tried.passed_over != 0) {
      is_late = is_late || tried.failed == 0;  // a refusal counts more than what is tried after it
      tried.again = true;
      static_cast<void>(connects(indices{}));
      is_late = is_late && tried.late != 0;
    }
    if (made.part_.index() == 0) {
      memory_of_failures_.note(peer, tried.late, tried.late,
                               {options_.attempt_timeout, options_.retry_after});
      const errc reason = is_late ? errc::timed_out : errc::transport_failed;
      const bool is_local = tried.local != 0 && tried.local == tried.failed;
      throw error(is_local ? errc::system_failed : reason,
                  std::string{name} + ": no member reaches the peer: " + tried.reasons.text());
    }
    made.refused_ = tried.reasons.text();
    memory_of_failures_.note(peer, tried.failed & ~tried.local, tried.late,
                             {options_.attempt_timeout, options_.retry_after});
    memory_of_failures_.forget(peer, made.part_.index() - 1);
    return made;
  }

 private:
  friend queue;

  struct attempts {
    first_of_detail::refusals reasons{};
    std::uint32_t failed = 0;       ///< bit per member
    std::uint32_t late = 0;         ///< those of them that timed out
    std::uint32_t local = 0;        ///< those of them to which this machine gave no descriptor or thread
    std::uint32_t passed_over = 0;  ///< failed a short time ago
    bool again = false;             ///< no other member connects: those are tried after all
  };

  [[nodiscard]] static constexpr std::array<bool, count> all_enabled() {
    std::array<bool, count> all{};
    all.fill(true);
    return all;
  }

  template <std::size_t I>
  void start(incarnation self) {
    if (!options_.enabled[I]) return refusals_.add(member<I>::name, "not enabled in this process");
    if (options_.required_encryption == encryption::everywhere && shows_bytes<I>)
      return refusals_.add(member<I>::name,
                           "does not encrypt, which required_encryption asks for everywhere");
    auto& slot = std::get<I>(members_);
    try {
      tell_location(std::get<I>(options_.members), options_.here);
      slot.emplace(std::get<I>(options_.members), self);
      place_.members.push_back({I, slot->address().text});
    } catch (const error& e) {
      slot.reset();
      const bool cannot_listen = dynamic_cast<const listen_error*>(&e) != nullptr;
      if (cannot_listen && has_fixed_port(std::get<I>(options_.members))) throw;  // a firewall is set for it
      refusals_.add(member<I>::name, e.what());
    }
  }

  void update_address() {
    address_.text = first_of_detail::encode(place_);
    if (address_.text.size() > limits::address_bytes)
      throw error(errc::limit_exceeded, std::string{name} + ": the members' addresses together have " +
                                            std::to_string(address_.text.size()) + " bytes; at most " +
                                            std::to_string(limits::address_bytes) +
                                            " fit: use fewer members, or shorter names");
  }

  template <std::size_t I>
  void register_with(std::vector<memory_region>& regions, std::span<const memory_range> ranges,
                     region_access access, first_of_detail::refusals& left_out) {
    try {
      const std::shared_lock lock{members_mutex_};
      auto& started = std::get<I>(members_);
      if (!started) return;
      auto parts = started->register_memory(ranges, access);
      for (std::size_t i = 0; i < parts.size(); ++i)
        std::get<I>(regions[i].parts_).emplace(std::move(parts[i]));
      has_registered_[I] = true;
      for (const memory_range& each : ranges) {
        if (!each.host_accessible()) takes_devices_[I] = true;
        if (each.migrates()) takes_managed_[I] = true;
      }
    } catch (const error& e) {
      if (!refuses_devices<I>(ranges, access)) throw;
      if (!stop<I>(e.sentence()))
        left_out.add(member<I>::name, "left out, since it does not take this device memory: " + e.sentence());
    }
  }

  /// The member cannot register these ranges, and device memory, or managed memory, is the reason.
  template <std::size_t I>
  [[nodiscard]] bool refuses_devices(std::span<const memory_range> ranges, region_access access) {
    std::vector<memory_range> others;  // than those that may be the reason
    for (const memory_range& each : ranges) {
      const bool is_taken =
          each.migrates() ? takes_managed_[I].load() : each.host_accessible() || takes_devices_[I];
      if (is_taken) others.push_back(each);
    }
    const std::shared_lock lock{members_mutex_};
    if (others.size() == ranges.size() || place_.members.size() < 2) return !std::get<I>(members_);
    // If the member cannot register these either, they are the reason.
    if (!others.empty() && std::get<I>(members_))
      static_cast<void>(std::get<I>(members_)->register_memory(others, access));
    return true;
  }

  /// Stops a member that is not in use. False: it is.
  template <std::size_t I>
  [[nodiscard]] bool stop(const std::string& why) {
    const std::unique_lock lock{members_mutex_};
    auto& started = std::get<I>(members_);
    if (!started) return true;
    if (has_registered_[I] || has_connected_[I] || place_.members.size() < 2) return false;
    started.reset();
    refusals_.add(member<I>::name, "stopped, since it does not take this device memory: " + why);
    std::erase_if(place_.members, [](const auto& each) { return each.index == I; });
    update_address();
    return true;
  }

  /// This process reads no more through members that do not take all of its memory.
  void leave_out(const first_of_detail::refusals& refused) {
    if (refused.empty()) return;
    const std::unique_lock lock{members_mutex_};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      (leave_out_one<I>(refused), ...);
    }
    (indices{});
  }
  template <std::size_t I>
  void leave_out_one(const first_of_detail::refusals& refused) {
    const std::string why = refused.of(member<I>::name);
    if (!why.empty() && !is_left_out_[I].exchange(true)) refusals_.add(member<I>::name, why);
  }

  template <typename Do>
  void each_started(Do&& act) {
    const std::shared_lock lock{members_mutex_};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::get<I>(members_) ? act.template operator()<I>(*std::get<I>(members_)) : void()), ...);
    }
    (indices{});
  }
  template <typename Do>
  void each_started(Do&& act) const {
    const std::shared_lock lock{members_mutex_};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::get<I>(members_) ? act.template operator()<I>(*std::get<I>(members_)) : void()), ...);
    }
    (indices{});
  }

  [[nodiscard]] std::optional<remote_region> describe_all(const memory_region& region) const {
    remote_region out;
    out.bytes = region.range_.bytes;
    bool fits = true;
    first_of_detail::key_writer key;
    each_started([&]<std::size_t I>(const auto& started) {
      if (const auto& part = std::get<I>(region.parts_))
        fits = fits && key.append(I, started.describe(*part));
    });
    if (!fits) return std::nullopt;
    out.key = key.finish();
    return out;
  }

  struct reader_facts {
    const std::string& capability;
    incarnation self;
    incarnation peer;
  };

  /// The member's bytes leave the machine as they are.
  template <std::size_t I>
  static constexpr bool shows_bytes =
      member<I>::capabilities.crosses_hosts && !member<I>::capabilities.encrypts;

  [[nodiscard]] bool must_encrypt(const first_of_detail::place& peer) const noexcept {
    if (options_.required_encryption != encryption::across_datacenters)
      return options_.required_encryption == encryption::everywhere;
    return peer.datacenter.empty() || peer.datacenter != place_.datacenter;
  }

  /// A member behind this one may reach the peer, too, and needs some of the time.
  template <std::size_t I>
  [[nodiscard]] bool may_follow(const first_of_detail::place& where, const attempts& tried) const {
    return [&]<std::size_t... J>(std::index_sequence<J...>) {
      return ((J > I && std::get<J>(members_) && !is_left_out_[J] && where.address_of(J) != nullptr &&
               (member<J>::capabilities.crosses_hosts || where.machine == place_.machine) &&
               (!tried.again || (tried.passed_over & (1u << J)) != 0)) ||
              ...);
    }
    (indices{});
  }

  /// True: connected.
  template <std::size_t I>
  [[nodiscard]] bool attempt(endpoint& made, queue& on, const first_of_detail::place& where,
                             const reader_facts& who, std::chrono::steady_clock::time_point until,
                             attempts& tried) {
    constexpr transport_capabilities can = member<I>::capabilities;
    constexpr std::uint32_t bit = 1u << I;
    if (tried.again && (tried.passed_over & bit) == 0) return false;
    const auto skip = [&](const std::string& why) {
      tried.reasons.add(member<I>::name, why);
      return false;
    };
    const std::shared_lock lock{members_mutex_};
    auto& own = std::get<I>(members_);
    const std::string* const theirs = where.address_of(I);
    if (!own) return skip("not started here: " + refusals_.of(member<I>::name));
    if (is_left_out_[I]) return skip(refusals_.of(member<I>::name));
    if (theirs == nullptr) return skip("not started by the peer");
    if (!can.crosses_hosts && where.machine != place_.machine) return skip("the peer is on another machine");
    if (!can.crosses_datacenters && !where.datacenter.empty() && !place_.datacenter.empty() &&
        where.datacenter != place_.datacenter)
      return skip("the peer is in another datacenter, " + where.datacenter);
    if (shows_bytes<I> && must_encrypt(where))
      return skip("does not encrypt, which required_encryption asks for with this peer" +
                  std::string{where.datacenter.empty() || place_.datacenter.empty()
                                  ? " (one of the two processes names no datacenter)"
                                  : ""});
    if (!tried.again && memory_of_failures_.holds(who.peer, I)) {
      tried.passed_over |= bit;
      return skip("failed with this peer a short time ago");
    }

    const auto now = std::chrono::steady_clock::now();
    duration time = std::max<duration>(until - now, std::chrono::milliseconds{1});
    if (may_follow<I>(where, tried))
      time = std::min<duration>(time / 2, options_.attempt_timeout);
    else if (!tried.again && tried.passed_over != 0)  // whose turn comes after all, if this one fails
      time = std::max<duration>(time / 2, time - options_.attempt_timeout);
    try {
      has_connected_[I].store(true);
      auto& queue_of_member = on.template start<I>(*own);
      made.part_.template emplace<I + 1>(
          connect_as(who.self, *own, queue_of_member, {*theirs, who.capability}, who.peer, time));
      return true;
    } catch (const error& e) {
      tried.failed |= bit;
      if (e.code() == errc::timed_out) tried.late |= bit;
      if (e.code() == errc::system_failed) tried.local |= bit;
      return skip(e.what());
    }
  }

  options options_;
  /// Locked exclusively only while a member is stopped. Data members that are not constant change only then,
  /// or in the constructor.
  mutable std::shared_mutex members_mutex_;
  std::array<std::atomic<bool>, count> has_registered_{};
  std::array<std::atomic<bool>, count> has_connected_{};
  std::array<std::atomic<bool>, count> takes_devices_{};
  std::array<std::atomic<bool>, count> takes_managed_{};
  std::array<std::atomic<bool>, count> is_left_out_{};  ///< does not take all device memory
  first_of_detail::place place_;
  first_of_detail::refusals refusals_;
  first_of_detail::failure_memory memory_of_failures_;
  std::tuple<std::optional<Members>...> members_;
  transport_address address_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
