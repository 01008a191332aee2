#pragma once
/// \file hub.hpp
/// One name for a matching set of policies.
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp>;
///     hub::publisher trainer{{.server = "tcp://10.0.0.1:5570", .model = "policy", .replica = "trainer-0",
///                             .shard = {rank, world}}};
///     hub::subscriber rollout{{.server = "tcp://10.0.0.1:5570", .model = "policy", .replica = "rollout-17",
///                              .shard = {rank, world}}};
///     hub::reference_server server{{.address = "tcp://127.0.0.1:5570"}};  // of <tensorhub/server.hpp>
///
/// After the transport come policies, in any order; each kind has a default, so only those that differ from
/// it are named:
///
///     tensorhub::hub<tensorhub::transports::tcp, tensorhub::cuda_memory>
///     tensorhub::hub<tensorhub::transports::tcp, tensorhub::no_integrity, tensorhub::least_loaded>
///
/// | kind         | what it decides                          | default          |
/// |--------------|------------------------------------------|------------------|
/// | scheduler    | which sources a reader gets              | nearest_source   |
/// | consistency  | when a version counts as available       | group_consistent |
/// | integrity    | how bytes are checked                    | xxh3_128         |
/// | memory_space | where the weights live                   | host_memory      |
///
/// A worker whose consistency policy is not the server's, or whose transport or integrity policy is not that
/// of the model's other workers, is refused when it joins, with a sentence.

#include <concepts>

#include "tensorhub/arena_publisher.hpp"
#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/publisher.hpp"
#include "tensorhub/seeder.hpp"
#include "tensorhub/subscriber.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Defined in <tensorhub/server.hpp>, which neither this header nor the umbrella includes: most programs are
/// workers.
template <scheduler Scheduler, consistency Consistency>
class reference_server;

namespace hub_detail {

/// The author has opted in to the kind of policies that `Tag` stands for.
template <typename Policy, typename Tag>
concept tagged = std::same_as<typename Policy::concept_tag, Tag>;

template <typename Policy>
concept hub_policy = tagged<Policy, scheduler_tag> || tagged<Policy, consistency_tag> ||
    tagged<Policy, integrity_tag> || tagged<Policy, memory_space_tag>;

/// The only policy of its kind among `Policies`, or the default.
template <typename Tag, typename Default, typename... Policies>
struct policy_of {
  using type = Default;
};
template <typename Tag, typename Default, typename First, typename... Policies>
struct policy_of<Tag, Default, First, Policies...> : policy_of<Tag, Default, Policies...> {};
template <typename Tag, typename Default, tagged<Tag> First, typename... Policies>
struct policy_of<Tag, Default, First, Policies...> {
  using type = First;
};

template <typename Tag, typename... Policies>
inline constexpr bool at_most_one = (0 + ... + (tagged<Policies, Tag> ? 1 : 0)) <= 1;

/// Two steps, so that a wrong argument is one sentence: the names are only there for arguments that are
/// right.
template <bool IsRight, typename Transport, typename... Policies>
struct hub_names {};
template <typename Transport, typename... Policies>
struct hub_names<true, Transport, Policies...> {
 private:
  using scheduler_type = typename policy_of<scheduler_tag, nearest_source, Policies...>::type;
  using consistency_type = typename policy_of<consistency_tag, group_consistent, Policies...>::type;
  using integrity_type = typename policy_of<integrity_tag, xxh3_128, Policies...>::type;
  using memory_type = typename policy_of<memory_space_tag, host_memory, Policies...>::type;

 public:
  using publisher = tensorhub::publisher<Transport, consistency_type, integrity_type, memory_type>;
  /// Receives its tensors one by one (arena_publisher.hpp).
  using arena_publisher =
      tensorhub::arena_publisher<Transport, consistency_type, integrity_type, memory_type>;
  /// Receives in place, or beside its live weights (subscriber_mode).
  using subscriber = tensorhub::subscriber<Transport, consistency_type, integrity_type, memory_type>;
  /// Brings each version into a datacenter in the background (seeder.hpp).
  using seeder =
      tensorhub::seeder<Transport, consistency_type, integrity_type, offload_space_of<memory_type>>;
  /// Complete once <tensorhub/server.hpp> is included.
  using reference_server = tensorhub::reference_server<scheduler_type, consistency_type>;
};

/// Requirements on a hub's arguments.
template <typename Transport, typename... Policies>
struct hub_check {
  // (Laid out by hand: clang-format 14 takes these for casts.)
  // clang-format off
  static constexpr bool only_policies = (hub_policy<Policies> && ...);
  static constexpr bool one_of_each =
      at_most_one<scheduler_tag, Policies...> && at_most_one<consistency_tag, Policies...> &&
      at_most_one<integrity_tag, Policies...> && at_most_one<memory_space_tag, Policies...>;
  static constexpr bool value =
      transport<Transport> && only_policies && one_of_each &&
      ((!tagged<Policies, scheduler_tag> || scheduler<Policies>) && ...) &&
      ((!tagged<Policies, consistency_tag> || consistency<Policies>) && ...) &&
      ((!tagged<Policies, integrity_tag> || integrity<Policies>) && ...) &&
      ((!tagged<Policies, memory_space_tag> || memory_space<Policies>) && ...);
  // clang-format on
};

/// Asserts the concept itself, so that the compiler says which requirement a policy does not meet.
template <typename Policy>
struct checked_policy {};
template <tagged<scheduler_tag> Policy>
struct checked_policy<Policy> {
  static_assert(scheduler<Policy>,
                "the scheduler of hub must model tensorhub::scheduler (concepts/scheduler.hpp)");
};
template <tagged<consistency_tag> Policy>
struct checked_policy<Policy> {
  static_assert(consistency<Policy>,
                "the consistency of hub must model tensorhub::consistency (concepts/consistency.hpp)");
};
template <tagged<integrity_tag> Policy>
struct checked_policy<Policy> {
  static_assert(integrity<Policy>,
                "the integrity of hub must model tensorhub::integrity (concepts/integrity.hpp)");
};
template <tagged<memory_space_tag> Policy>
struct checked_policy<Policy> {
  static_assert(memory_space<Policy>,
                "the memory space of hub must model tensorhub::memory_space (concepts/memory_space.hpp)");
};

}  // namespace hub_detail

template <typename Transport, typename... Policies>
struct hub
    : hub_detail::hub_names<hub_detail::hub_check<Transport, Policies...>::value, Transport, Policies...> {
 private:
  using check = hub_detail::hub_check<Transport, Policies...>;
  static_assert(transport<Transport>,
                "the first argument of hub must model tensorhub::transport (concepts/transport.hpp)");
  static_assert(
      !transport<Transport> || check::only_policies,
      "every argument of hub after the transport must be a scheduler, a consistency, an integrity or "
      "a memory_space (concepts/): is its header included?");
  static_assert(!transport<Transport> || !check::only_policies || check::one_of_each,
                "hub takes one policy of each kind, and two of its arguments are of the same kind");
  static_assert((0 + ... + sizeof(hub_detail::checked_policy<Policies>)) >= sizeof...(Policies));
};

}  // namespace tensorhub::inline TENSORHUB_MODE
