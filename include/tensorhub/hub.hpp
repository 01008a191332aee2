#pragma once
/// \file hub.hpp
/// One name for a matching set of policies.
///
///     using hub = tensorhub::hub<tensorhub::transports::tcp>;
///     hub::publisher trainer{{.server = "tcp://10.0.0.1:5570", .model = "policy", .replica = "trainer-0",
///                             .shard = {rank, world}}};
///     hub::subscriber rollout{{.server = "tcp://10.0.0.1:5570", .model = "policy", .replica = "rollout-17",
///                              .shard = {rank, world}}};
///     hub::reference_server server{{.address = "tcp://127.0.0.1:5570"}};
///
/// A worker whose consistency policy is not the server's, or whose transport or integrity policy is not that
/// of the model's other workers, is refused when it joins, with a sentence.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/double_buffered_subscriber.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/publisher.hpp"
#include "tensorhub/seeder.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/staged_subscriber.hpp"
#include "tensorhub/subscriber.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <typename Transport, typename Scheduler, typename Consistency, typename Integrity, typename Memory>
struct hub {
  static_assert(transport<Transport>,
                "the first argument of hub must model tensorhub::transport (concepts/transport.hpp)");
  static_assert(
      scheduler<Scheduler>,
      "the second argument of hub must model scheduler (concepts/scheduler.hpp): is its header included?");
  static_assert(
      consistency<Consistency>,
      "the third argument of hub must model consistency (concepts/consistency.hpp): is its header included?");
  static_assert(integrity<Integrity>,
                "the fourth argument of hub must model tensorhub::integrity (concepts/integrity.hpp)");

  static_assert(memory_space<Memory>,
                "the fifth argument of hub must model tensorhub::memory_space (concepts/memory_space.hpp)");

  using publisher = tensorhub::publisher<Transport, Consistency, Integrity, Memory>;
  using subscriber = tensorhub::subscriber<Transport, Consistency, Integrity, Memory>;
  /// Receives beside its live weights, then copies (staged_subscriber.hpp).
  using staged_subscriber = tensorhub::staged_subscriber<Transport, Consistency, Integrity, Memory>;
  /// Receives beside its live weights, then flips (double_buffered_subscriber.hpp).
  using double_buffered_subscriber =
      tensorhub::double_buffered_subscriber<Transport, Consistency, Integrity, Memory>;
  /// Brings each version into a datacenter in the background (seeder.hpp).
  using seeder = tensorhub::seeder<Transport, Consistency, Integrity, offload_space_of<Memory>>;
  using reference_server = tensorhub::reference_server<Scheduler, Consistency>;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
