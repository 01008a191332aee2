#pragma once
/// \file pull_order.hpp
/// A session's orders about a transfer, in the words of the driver that carries them out. Values.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/session/actions.hpp"
#include "tensorhub/transfer/pull_driver.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What to read, from whom, and how it is shown meanwhile.
struct pull_order {
  version_number version{};
  std::uint64_t epoch = 0;    ///< of the control block while it runs
  std::uint64_t ordinal = 0;  ///< of this reader: where it begins
  std::vector<pull_target> sources{};
};
/// A source more, one less, or one for another.
struct pull_change {
  std::optional<pull_target> added{};
  lease_id released{};  ///< zero: none
};

/// `chunks`: of the shard.
[[nodiscard]] inline pull_target pull_target_of(const messages::assignment& source, std::uint64_t chunks) {
  return {{source.lease, source.source, source.version, source.epoch, source.root, source.receiving,
           first_chunk_of(source.ordinal, chunks), source.crossing},
          source.address,
          source.control,
          source.source_replica + "/" + std::to_string(source.source_shard)};
}
[[nodiscard]] inline pull_order pull_order_of(const session_actions::start_pull& order, std::uint64_t epoch,
                                              std::uint64_t chunks) {
  pull_order out{order.version, epoch, order.ordinal, {}};
  for (const messages::assignment& source : order.sources)
    out.sources.push_back(pull_target_of(source, chunks));
  return out;
}

/// A source that was given up, for the log.
[[nodiscard]] inline log_line line_of(const worker_options& reader, incarnation self, version_number version,
                                      const source_failure& lost) {
  log_line out{log_level::warning, "gave up a source: " + lost.detail, {}};
  out.about.model = reader.model;
  out.about.replica = reader.replica;
  out.about.shard = reader.shard.index;
  out.about.worker = self;
  out.about.peer = lost.holder;
  out.about.version = version;
  out.about.lease = lost.lease;
  out.about.chunk = lost.chunk;
  out.about.code = lost.reason;
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
