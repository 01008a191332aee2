#pragma once
/// \file update_replies.hpp
/// The three answers to a call of update(): no, what you have is it, and where to read; and what the server
/// says when there is nobody.

#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/state.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// `counter`: of the operation, if it is known.
[[nodiscard]] inline messages::update_reply refused(messages::status why, operation_counter counter = {}) {
  messages::update_reply reply;
  reply.result = std::move(why);
  reply.operation = counter;
  return reply;
}
/// The version that the caller holds already.
[[nodiscard]] inline messages::update_reply kept(operation_counter counter, version_number version) {
  messages::update_reply reply;
  reply.operation = counter;
  reply.keep = true;
  reply.version = version;
  return reply;
}
/// The sources that the caller starts with, its upstream first.
[[nodiscard]] inline messages::update_reply assigned(const operation_state& operation,
                                                     std::vector<messages::assignment> sources) {
  messages::update_reply reply;
  reply.operation = operation.counter;
  reply.version = operation.version;
  reply.sources = std::move(sources);
  return reply;
}

/// `detail`: what became of the last source, if there was one.
[[nodiscard]] inline messages::status nobody_left(const operation_state& operation,
                                                  const worker_state& reader, const std::string& detail) {
  return {errc::unavailable, "nobody is left from whom shard " + to_string(reader.shard) + " of version " +
                                 to_string(operation.version) + " could be read" +
                                 (detail.empty() ? std::string{} : " (the last source: " + detail + ")")};
}

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
