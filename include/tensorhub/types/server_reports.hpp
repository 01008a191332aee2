#pragma once
/// \file server_reports.hpp
/// What a reference server tells of its models and of what waits: the answers of `list`, `describe_model` and
/// `stuck`. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The places from which an update may take its version.
enum class update_reach : std::uint8_t {
  anywhere = 0,
  /// Only a version that is held completely in the reader's datacenter; if none is newer than the held
  /// version, the reader keeps that one. A reader that holds nothing takes any available version.
  prefer_local = 1,
};

struct replica_entry {
  std::string name{};
  std::uint32_t shards_joined = 0;
  version_number version{};  ///< version that the replica holds completely; zero: none
  bool torn = false;
  bool spot = false;
  std::uint32_t readers = 0;
};
struct model_entry {
  std::string name{};
  std::uint32_t shards = 0;
  std::uint64_t bytes = 0;  ///< sum over the shards whose layout is known
  version_number latest{};
  std::vector<version_number> available{};
  std::vector<replica_entry> replicas{};
};

/// What is known of the tensors of one shard of a model.
struct model_description {
  std::uint32_t shards = 0;  ///< of the model
  std::uint64_t chunk_bytes = 0;
  std::vector<tensor_spec> tensors{};
};

/// Why something waits.
enum class stuck_kind : std::uint8_t {
  no_version = 0,        ///< an update, or a wait, for a version that no replica holds completely
  no_credit = 1,         ///< the version is available, but its holders have no free credit
  absent_shards = 2,     ///< the version is decided; other shards of the replica have not called
  no_progress = 3,       ///< sources are assigned, and no chunk has arrived since
  draining = 4,          ///< an unpublish, or the drain before an update, waits for readers
  unfinished_group = 5,  ///< has received every chunk; other shards of the replica have not
  cut_off = 6,           ///< a source has not confirmed the cut-off of a dead reader
  silent_worker = 7,     ///< more than two heartbeats are missing
};
/// One waiting worker: what it waits for, and for which peers.
struct stuck_entry {
  stuck_kind kind = stuck_kind::no_version;
  std::string model{};
  std::string replica{};
  std::uint32_t shard = 0;
  incarnation worker{};  ///< zero: a worker that is gone
  version_number version{};
  operation_counter operation{};  ///< zero: none
  std::uint64_t waited_ms = 0;
  std::uint64_t chunks = 0;  ///< received so far in the running update
  std::string peers{};       ///< the peers it waits for: "replica/shard (incarnation), ..."
  std::string advice{};      ///< what is missing, and what the user can do about it
};
/// What waits in the whole system, and for what.
struct stuck_report {
  std::vector<stuck_entry> entries{};  ///< the oldest first
  std::uint32_t left_out = 0;          ///< entries beyond the answer's limit
};

}  // namespace tensorhub::inline TENSORHUB_MODE
