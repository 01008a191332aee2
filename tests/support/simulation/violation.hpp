#pragma once
/// \file violation.hpp
/// The rules of a simulated history, and the report of a breach.
///
/// Thread safety: plain values.

#include <cstdint>
#include <functional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// What tests compare; the sentence of a violation is for people.
enum class rule : std::uint8_t {
  answers,           ///< a request that the protocol answers at once is answered at once
  beliefs,           ///< the server knows what an idle worker holds
  bytes_of_version,  ///< a worker that shows or has received a version has its bytes
  catalog,           ///< the catalog keeps its own rules (service/catalog/rules.hpp)
  calls,             ///< a call ends once, by its deadline
  credits,           ///< no worker has more readers than the scheduler's credits
  drains,            ///< an unpublish that has returned leaves no lease behind
  end_of_history,    ///< without faults everything comes to rest at the last version
  goodbyes,          ///< a worker is told that it is dead only for a reason
  grace,             ///< latest is the newest version that is there, and none that is there is denied
  group_end,         ///< an update of a replica succeeds for all of its shards or for none
  group_version,     ///< all shards of a replica get one version
  lanes,             ///< no silent source keeps a pull from one that is connected
  leases,            ///< each lease is on a worker that shows its version and is not drained; granted once
  permission,        ///< bytes stay as they are while a reader may still read them
  places,            ///< an incarnation joins in one role
  readable,          ///< a version that a living worker shows can be read with a lease on it
  received_chunks,   ///< an accepted chunk has its version's bytes
  retention,         ///< a retained version stays with a reliable replica
  seeds,             ///< one lease of a version and shard crosses into a datacenter
  shown_chunks,      ///< a chunk that others may read has its version's bytes
  sources,           ///< an accepted chunk was read before its source let go of it
  steps,             ///< without faults the shards of a replica count their calls alike
  trainers,          ///< a trainer's publish and unpublish succeed
  valid,             ///< an update never ends with a version that was rolled back before its call
  whole,             ///< an update ends only with a version that its publisher has made whole
};

struct violation {
  rule broken{};
  std::string sentence{};
};

using report_violation = std::function<void(violation)>;

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
