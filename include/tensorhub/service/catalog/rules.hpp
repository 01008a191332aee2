#pragma once
/// \file rules.hpp
/// The rules of the catalog (catalog.hpp lists them), asserted in one place: they hold after every event.
/// Tests, the simulator and the fuzz target ask `catalog::broken_rule` after each.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class rule_check {
 public:
  rule_check(const core& core, source_limits limits) : core_{core}, limits_{limits} {}

  /// The first rule that is broken; empty: none.
  [[nodiscard]] std::string run() {
    expect(core_.batch.refused.empty(), "every transition is in its table",
           [&] { return core_.batch.refused; });
    expect(core_.unsettled.empty() && core_.condemned.empty(), "an event ends when all is settled",
           [] { return std::string{"some workers are not"}; });
    for (const auto& [id, worker] : core_.workers) check_worker(*worker);
    for (const auto& [id, lease] : core_.leases) check_lease(lease);
    for (const auto& [id, worker] : core_.workers) check_load(*worker);
    for (const auto& [id, worker] : core_.workers) check_sources(*worker);
    for (const auto& [name, model] : core_.models) check_model(model);
    return std::move(broken_);
  }

 private:
  /// `whom` names what breaks the rule; it is called only then, since the names cost more than all rules.
  template <typename Whom>
  void expect(bool holds, std::string_view rule, const Whom& whom) {
    if (!holds && broken_.empty()) broken_ = std::string{rule} + ": " + whom();
  }

  void check_worker(const worker_state& worker) {
    const auto whom = [&] { return who(worker); };
    const bool is_withdrawn = worker.holding == holding::withdrawn;
    expect(worker.held.has_value() == (worker.holding != holding::nothing), "a state says what is held",
           whom);
    expect(is_withdrawn || !worker.held || worker.held->open == worker.shows_open(), "and whether it is open",
           whom);
    expect(worker.receiving.has_value() == (worker.writing == writing::receiving),
           "a state says what is received", whom);
    expect(!is_withdrawn || worker.drain, "what is withdrawn is being drained", whom);
    expect(!worker.drain || !worker.as_source.readers.empty() || core_.recovering(*worker.model) ||
               worker.model->before.awaited,
           "a drain is answered when no lease is left", whom);
    for (const auto& [sequence, answer] : worker.requests.answers)
      expect(answer.message || is_awaited(worker, {sequence}), "who is not answered yet is waited for", whom);
    const source_state& source = worker.as_source;
    expect(source.offered == versions::offer_of(worker), "a worker is offered as what it shows", whom);
    expect(source.offered == offer::none || source.version == worker.shown()->version,
           "and in the version that it shows", whom);
    // A chain of upstreams ends at the first worker that does not receive.
    const worker_state* at = &worker;
    for (std::size_t steps = 0; at != nullptr && at->receiving; at = at->as_reader.upstream) {
      expect(++steps <= core_.workers.size(), "upstreams form no cycle", whom);
      if (steps > core_.workers.size()) return;
    }
  }

  void check_lease(const lease_state& lease) {
    const auto whom = [&] {
      return "lease " + std::to_string(lease.id.value) + " on " + to_hex(lease.source);
    };
    const worker_state* source = core_.find(lease.source);
    const worker_state* reader = core_.find(lease.reader);
    const bool is_cut_off = lease.stage == lease_stage::cutting_off;
    expect(reader != nullptr || is_cut_off || lease.is_reserved(), "a lease has a reader, or is reserved",
           whom);
    expect(is_cut_off == core_.cut_offs.contains(lease.id), "each cut-off is waited for", whom);
    expect((source == nullptr) == core_.sourceless.contains(lease.id),
           "a lease ends with its source, but while an earlier server's may come", whom);
    if (source != nullptr)
      expect(detail::count(source->as_source.readers, lease.id) == 1, "a source knows its leases", whom);
    if (reader != nullptr && !is_cut_off)
      expect(detail::count(reader->as_reader.leases, lease.id) == 1, "a reader knows its leases", whom);
    if (reader != nullptr && lease.upstream && !is_cut_off)
      expect(reader->as_reader.upstream_lease == lease.id && reader->as_reader.upstream == source,
             "a reader has one upstream", whom);
    if (!lease.lasts()) return;
    ++load_[lease.source];
    if (lease.inherited) return;  // an earlier server granted it, by its own view
    expect(++granted_[lease.source] <= limits_.credits, "no source has more readers than credits", whom);
    if (reader != nullptr && lease.operation == reader->as_reader.operation)
      expect(++sources_[lease.reader] <= limits_.sources, "no reader has more sources than the limit", whom);
    if (lease.seeds && source != nullptr)
      expect(++seeds_[{source->model, lease.version, lease.shard, lease.datacenter}] <= 1,
             "one lease of a version and shard seeds a datacenter", whom);
  }

  void check_load(const worker_state& worker) {
    const auto found = load_.find(worker.id);
    expect(worker.as_source.load == (found == load_.end() ? 0 : found->second),
           "a source's load is the number of its leases that last", [&] { return who(worker); });
  }

  void check_sources(const worker_state& reader) {
    const auto found = sources_.find(reader.id);
    const bool is_full = found != sources_.end() && found->second >= limits_.sources;
    expect(!is_full || reader.as_reader.upstream != nullptr,
           "a reader without an upstream has a place for it", [&] { return who(reader); });
  }

  void check_model(const model_state& model) {
    for (const auto& [name, replica] : model.replicas) check_replica(*replica);
    for (const auto& each : model.versions) {
      const auto is_complete = [&](const auto& replica) {
        return each.first && replica.second->available == each.first;  // zero: nothing is available
      };
      const auto complete = detail::count_if(model.replicas, is_complete);
      expect(each.second.complete_replicas == complete, "complete replicas that are read are counted",
             [&] { return model.name + " " + to_string(each.first); });
    }
    for (const auto& waiting : model.operations.starved) {
      const operation_state& operation = *waiting.second;
      expect(!operation.is_closed() && (!operation.is_decided() || has_waiting(operation)),
             "who waits for a credit is undecided, or has a shard that waits",
             [&] { return operation.replica->name; });
    }
  }

  void check_replica(const replica_state& replica) {
    const auto whom = [&] { return replica.name; };
    expect(replica.complete == versions::complete_of(replica),
           "a replica has the version that all its shards hold", whom);
    expect(!replica.complete || !replica.torn, "a torn replica has no version", whom);
    for (const auto& [key, operation] : replica.operations) check_operation(operation);
    const auto is_before = [](const operation_state* a, const operation_state* b) {
      return a->key() < b->key();
    };
    expect(std::is_sorted(replica.open.begin(), replica.open.end(), is_before),
           "the open operations of a replica are in order", whom);
  }

  [[nodiscard]] static bool has_waiting(const operation_state& operation) {
    return detail::any_of(operation.members, [](const member_state& m) { return m.phase == phase::waiting; });
  }
  void check_operation(const operation_state& operation) {
    const auto whom = [&] { return operation.replica->name + " " + std::to_string(operation.counter.value); };
    const auto& open = operation.replica->model->operations.all;
    expect(operation.is_closed() != open.contains(operation.serial), "open operations are in the index",
           whom);
    expect(
        operation.is_closed() || !operation.is_decided() || !has_waiting(operation) || operation.starved != 0,
        "after a decision, shards wait for credits alone", whom);
    const auto listed = detail::count(operation.replica->open, &operation);
    expect(listed == (operation.is_closed() ? 0 : 1), "open operations are in the list of their replica",
           whom);
    for_each_member(operation, [&](const member_state& member, std::uint32_t shard) {
      expect(!operation.is_closed() || !member.sequence, "who called a closed operation has an answer", whom);
      const worker_state* worker = operation.replica->workers[shard];
      if (worker == nullptr || operation.is_publish || operation.is_closed() || !operation.is_decided())
        return;
      // A faulty worker may have said that it has ended another call.
      const bool is_reading =
          member.phase == phase::assigned && worker->as_reader.operation == operation.counter;
      const bool is_awaited = member.phase == phase::absent && !member.keeps && !operation.inherited;
      expect((!is_reading && !is_awaited) || worker->as_source.offered != offer::complete,
             "from a decision on, what will be overwritten has no readers", whom);
    });
  }

  const core& core_;
  source_limits limits_;
  std::string broken_;
  std::map<incarnation, std::uint32_t> load_;
  std::map<incarnation, std::uint32_t> granted_;
  std::map<incarnation, std::uint32_t> sources_;
  std::map<std::tuple<const model_state*, version_number, std::uint32_t, std::string>, std::uint32_t> seeds_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
