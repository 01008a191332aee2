/// \file told.cpp
/// Reports as dictionaries, whose keys are the fields of the classes in reports.py.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <tensorhub/service/statistics.hpp>
#include <tensorhub/worker/statistics.hpp>

#include "calls.hpp"

namespace tensorhub_python {

namespace {

nb::dict told(const tensorhub::outcome_counts& counted) {
  nb::dict out;
  for (std::size_t code = 0; code < counted.by_code.size(); ++code) {
    if (counted.by_code[code] > 0)
      out[nb::cast(std::string{to_string(static_cast<errc>(code))})] = counted.by_code[code];
  }
  return out;
}
nb::dict told(const tensorhub::seconds_histogram& counted) {
  nb::dict out;
  out["count"] = counted.count();
  out["sum_seconds"] = counted.sum_seconds();
  return out;
}

std::string kind_name(tensorhub::stuck_kind kind) {
  using tensorhub::stuck_kind;
  switch (kind) {
    case stuck_kind::no_version:
      return "no_version";
    case stuck_kind::no_credit:
      return "no_credit";
    case stuck_kind::absent_shards:
      return "absent_shards";
    case stuck_kind::no_progress:
      return "no_progress";
    case stuck_kind::draining:
      return "draining";
    case stuck_kind::unfinished_group:
      return "unfinished_group";
    case stuck_kind::cut_off:
      return "cut_off";
    case stuck_kind::silent_worker:
      return "silent_worker";
  }
  return "unknown";
}

}  // namespace

nb::dict told(const tensorhub::publish_report& done) {
  nb::dict out;
  out["version"] = done.version.value;
  out["bytes"] = done.bytes;
  out["digest_seconds"] = done.digest_seconds;
  out["seconds"] = done.seconds;
  return out;
}
nb::dict told(const tensorhub::snapshot_report& done) {
  nb::dict out = told(tensorhub::publish_report{done.version, done.bytes, done.digest_seconds, done.seconds});
  out["lost"] = done.lost;
  out["drain_seconds"] = done.drain_seconds;
  out["copy_seconds"] = done.copy_seconds;
  return out;
}
nb::dict told(const tensorhub::unpublish_report& done) {
  nb::dict out;
  out["finished"] = done.finished;
  out["moved"] = done.moved;
  out["cut_off"] = done.cut_off;
  out["forced"] = done.forced;
  out["lost"] = done.lost;
  out["changed"] = done.changed;
  out["seconds"] = done.seconds;
  return out;
}
nb::dict told(const tensorhub::update_report& done) {
  nb::dict out;
  out["version"] = done.version.value;
  out["kept"] = done.kept;
  out["lost"] = done.lost;
  out["bytes"] = done.bytes;
  out["unchanged_bytes"] = done.unchanged_bytes;
  out["seconds"] = done.seconds;
  out["wait_seconds"] = done.wait_seconds;
  out["pull_seconds"] = done.pull_seconds;
  nb::list sources;
  for (std::size_t i = 0; i < done.sources.size(); ++i)
    sources.append(nb::make_tuple(done.sources[i], done.paths[i], done.source_bytes[i]));
  out["sources"] = nb::tuple(sources);
  return out;
}
nb::dict told(const tensorhub::install_report& done) {
  nb::dict out;
  out["version"] = done.version.value;
  out["kept"] = done.kept;
  out["lost"] = done.lost;
  out["bytes"] = done.bytes;
  out["drain_seconds"] = done.drain_seconds;
  out["copy_seconds"] = done.copy_seconds;
  out["seconds"] = done.seconds;
  return out;
}
nb::dict told(const tensorhub::update_progress& at) {
  nb::dict out;
  out["version"] = at.version.value;
  out["bytes"] = at.bytes;
  out["total_bytes"] = at.total_bytes;
  out["done"] = at.done;
  return out;
}
nb::dict told(const tensorhub::worker_statistics& counted) {
  nb::dict out;
  out["publishes"] = told(counted.publishes);
  out["unpublishes"] = told(counted.unpublishes);
  out["updates"] = told(counted.updates);
  out["updates_kept"] = counted.updates_kept;
  out["drains_forced"] = counted.drains_forced;
  out["readers_moved"] = counted.readers_moved;
  out["readers_cut_off"] = counted.readers_cut_off;
  out["sources_failed"] = told(counted.sources_failed);
  out["stalls"] = counted.stalls;
  out["chunks"] = counted.chunks;
  out["unchanged_bytes"] = counted.unchanged_bytes;
  out["digested_chunks"] = counted.digested_chunks;
  nb::dict received;
  for (const auto& each : counted.received) {
    const nb::object path = nb::cast(each.path + (each.crossing ? " from another datacenter" : ""));
    const std::uint64_t before = received.contains(path) ? nb::cast<std::uint64_t>(received[path]) : 0;
    received[path] = before + each.bytes;
  }
  out["received_bytes"] = received;
  out["publish"] = told(counted.publish);
  out["digest"] = told(counted.digest);
  out["unpublish"] = told(counted.unpublish);
  out["update"] = told(counted.update);
  out["wait"] = told(counted.wait);
  out["pull"] = told(counted.pull);
  return out;
}
nb::dict told(const tensorhub::reference_server_statistics& counted) {
  nb::dict out;
  out["workers"] = counted.workers;
  out["replicas"] = counted.replicas;
  out["models"] = counted.models;
  out["leases"] = counted.leases;
  out["operations"] = counted.operations;
  out["workers_joined"] = counted.workers_joined;
  out["workers_left"] = counted.workers_left;
  out["workers_dead"] = counted.workers_dead;
  out["workers_replaced"] = counted.workers_replaced;
  out["messages"] = counted.messages;
  out["bad_frames"] = counted.bad_frames;
  out["refused_connections"] = counted.refused_connections;
  return out;
}
nb::dict told(const tensorhub::model_entry& model) {
  nb::dict out;
  out["name"] = model.name;
  out["shards"] = model.shards;
  out["bytes"] = model.bytes;
  out["latest"] = model.latest.value;
  nb::list available;
  for (const auto version : model.available) available.append(version.value);
  out["available"] = nb::tuple(available);
  nb::list replicas;
  for (const auto& each : model.replicas) {
    nb::dict replica;
    replica["name"] = each.name;
    replica["shards_joined"] = each.shards_joined;
    replica["version"] = each.version.value;
    replica["torn"] = each.torn;
    replica["spot"] = each.spot;
    replica["readers"] = each.readers;
    replicas.append(replica);
  }
  out["replicas"] = replicas;
  return out;
}
nb::dict told(const tensorhub::stuck_entry& entry) {
  nb::dict out;
  out["kind"] = kind_name(entry.kind);
  out["model"] = entry.model;
  out["replica"] = entry.replica;
  out["shard"] = entry.shard;
  out["version"] = entry.version.value;
  out["waited_seconds"] = static_cast<double>(entry.waited_ms) * 1e-3;
  out["chunks"] = entry.chunks;
  out["peers"] = entry.peers;
  out["advice"] = entry.advice;
  return out;
}

nb::tuple told(const tensorhub::tensor_spec& tensor) {
  nb::list shape;
  for (const std::uint64_t extent : tensor.shape) shape.append(extent);
  return nb::make_tuple(tensor.name, std::string{to_string(tensor.type)}, nb::tuple(shape));
}

}  // namespace tensorhub_python
