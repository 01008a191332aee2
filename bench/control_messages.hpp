#pragma once
/// \file control_messages.hpp
/// What the workers of the server's benchmarks say: replicas of one shard, on sixteen hosts.

#include <cstdint>
#include <string>
#include <tensorhub/policy/consistency/group_consistent.hpp>
#include <tensorhub/service/messages.hpp>
#include <tensorhub/types/layout.hpp>
#include <vector>

namespace bench {

/// The tensors that all workers have.
[[nodiscard]] inline std::vector<tensorhub::tensor_spec> tensors_of_all() {
  return {{"w", tensorhub::dtype::f32, {1024, 1024}}, {"b", tensorhub::dtype::f32, {1024}}};
}

[[nodiscard]] inline tensorhub::messages::join_request join_of(std::uint64_t worker,
                                                               const tensorhub::layout& shape,
                                                               bool with_layout) {
  tensorhub::messages::join_request join;
  join.model = "model";
  join.replica = "replica-" + std::to_string(worker);
  join.location.host = "host-" + std::to_string(worker % 16);
  join.spot = true;
  join.form.transport = "tcp";
  join.form.consistency = tensorhub::group_consistent::name;
  join.form.integrity = "xxh3_128";
  join.address.text = "tcp://127.0.0.1:" + std::to_string(10'000 + worker);
  join.form.layout_digest = shape.digest();
  join.form.chunk_bytes = shape.chunk_bytes();
  join.form.chunk_count = shape.chunk_count();
  if (with_layout) join.form.tensors = tensors_of_all();
  return join;
}

/// What a worker shows that holds this version.
[[nodiscard]] inline tensorhub::messages::reference held_by(std::uint64_t version, std::uint64_t epoch) {
  tensorhub::messages::reference held;
  held.version = {version};
  held.epoch = epoch;
  held.root = {7, 7};
  held.control = {0, 4096, {}};
  held.control.key.used_bytes = 24;
  return held;
}

}  // namespace bench
