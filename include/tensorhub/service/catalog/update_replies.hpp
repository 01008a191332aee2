#pragma once
/// \file update_replies.hpp
/// The three answers to a call of update(): a refusal, "the held version is the right one", and a list of
/// sources; and the status when no source is left.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/state.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// Refuses the call. `counter`: number of the operation, if it is known.
[[nodiscard]] inline messages::update_reply refused(messages::status why, operation_counter counter = {}) {
  messages::update_reply reply;
  reply.result = std::move(why);
  reply.operation = counter;
  return reply;
}
/// Tells the caller that it already holds the decided version.
[[nodiscard]] inline messages::update_reply kept(operation_counter counter, version_number version) {
  messages::update_reply reply;
  reply.operation = counter;
  reply.keep = true;
  reply.version = version;
  return reply;
}
/// Assigns the sources that the caller starts with, its upstream first.
[[nodiscard]] inline messages::update_reply assigned(const operation_state& operation,
                                                     std::vector<messages::assignment> sources) {
  messages::update_reply reply;
  reply.operation = operation.counter;
  reply.version = operation.version;
  reply.sources = std::move(sources);
  return reply;
}

/// `reason`, `detail`: the failure of the last source, if there was one. The reader's own machine may have
/// been the reason: to ask again does not help then.
[[nodiscard]] inline messages::status no_source_left(const operation_state& operation,
                                                     const worker_state& reader, errc reason = errc::ok,
                                                     const std::string& detail = {}) {
  if (reason == errc::system_failed)
    return {reason, "shard " + to_string(reader.shard) + " of version " + to_string(operation.version) +
                        " cannot be read, for a reason of the reader's own machine: " + detail};
  const auto record = reader.model->versions.find(operation.version);
  const std::size_t holders = record == reader.model->versions.end()
                                  ? 0
                                  : record->second.sources[reader.shard.index]->complete_count();
  const std::string what = "shard " + to_string(reader.shard) + " of version " + to_string(operation.version);
  std::string sentence = holders == 0 ? "no remaining source holds " + what
                                      : what + " cannot be read from any of the workers that hold it (" +
                                            std::to_string(holders) + "): each has failed this reader";
  if (!detail.empty()) sentence += " (the last source: " + detail + ")";
  return {errc::unavailable, std::move(sentence)};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
