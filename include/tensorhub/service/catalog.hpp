#pragma once
/// \file catalog.hpp
/// All decisions of the reference server, as a pure state machine: its input is messages and time, its output
/// is messages and log lines.
///
/// The catalog records which worker holds which version in place, counts leases, decides one version per
/// group operation, chooses sources through the scheduler and declares silent workers dead. It has no thread,
/// socket or clock; server.hpp runs it over ZeroMQ, tests/support/simulation runs it in virtual time. The
/// decisions are in its parts (service/catalog/; core.hpp lists them); this class makes requests idempotent
/// and runs the timers.
///
/// The rules that the catalog keeps (DESIGN section 2):
///  - A lease counts from its assignment, also while it is only reserved for a shard that has not called yet.
///    An unpublish is answered when no lease is left.
///  - From the decision of an update on, the replica's old references accept no reader. The chunks that its
///    shards receive may be read at once.
///  - Upstreams (one source of each reader) form no cycle, and end at a worker that has every chunk. A reader
///    without an upstream has a place for it among its sources.
///  - No worker has more readers than the scheduler's credits; at most one reader per datacenter, version and
///    shard reads from another datacenter.
///  - A dead reader's lease ends when its source has confirmed the cut-off, or is gone itself.
///  - Under a policy that completes per group, a replica serves a version only when all its shards hold it;
///    after a failed update that changed bytes it is torn and serves nothing until all its shards hold one
///    version again.
///  - A version that was rolled back is offered to nobody; updates that have not finished it fail.
///
/// Thread safety: none; one thread at a time. Bad input never throws; the catalog answers it with a status,
/// or ignores it and writes a log line.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/service/any_policies.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/options.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class catalog {
 public:
  catalog(catalog_options options, server_epoch epoch, any_scheduler scheduler = nearest_source{},
          any_consistency consistency = group_consistent{});
  ~catalog();
  catalog(catalog&& other) noexcept;
  catalog& operator=(catalog&& other) noexcept;

  /// Handles any message of any worker; never throws because of its contents.
  /// `from`: whose connection it came by (default: a server without security, where everybody may say
  /// everything). `more`: others may follow before the output is taken; readers are given further sources of
  /// what has arrived only then, as many will have reported the end of their updates.
  void receive(time_point now, const messages::envelope& envelope, const client_identity& from = {},
               bool more = false);

  /// Runs the timers: deadlines of waiting requests, silent workers, repeated cut-offs. Call at or after
  /// `next_deadline()`. `behind`: messages wait to be received, so nobody is declared dead for being silent.
  void advance(time_point now, bool behind = false);
  [[nodiscard]] time_point next_deadline() const noexcept;

  /// Reports that the shell could not send to this worker: its connection is gone, at least for the moment.
  void unreachable(time_point now, incarnation worker);

  /// What a key may do now; null: it is not on the list any more.
  using rules_lookup = std::function<std::shared_ptr<const client_rules>(const std::string& key)>;
  /// The list of keys has changed: workers, and those whose joins wait, have the rights that it gives them.
  /// Nobody is to read from a worker whose key is gone. What that one sends is not received here, so it will
  /// be declared dead.
  void review(time_point now, const rules_lookup& rules_of);

  /// What is to be sent because of all events since the last call. Of several events taken together it is
  /// less than of each alone: a later one may make messages of an earlier one moot (`leases::is_moot`).
  [[nodiscard]] std::vector<outgoing> take_output();
  [[nodiscard]] std::vector<log_line> take_log();
  [[nodiscard]] server_epoch epoch() const noexcept { return core().epoch; }
  /// The limits of the scheduler.
  [[nodiscard]] source_limits limits() const noexcept;

  /// The counters since the start, and the present numbers of workers, models and so on.
  [[nodiscard]] catalog_statistics statistics() const;
  /// One entry for each model that has a worker.
  [[nodiscard]] std::vector<model_versions> versions() const;
  [[nodiscard]] std::size_t worker_count() const noexcept { return core().workers.size(); }
  /// The worker has joined, and has neither left nor been declared dead.
  [[nodiscard]] bool knows(incarnation worker) const { return core().workers.contains(worker); }
  /// Its join waits until the server has learnt the layout.
  [[nodiscard]] bool is_joining(incarnation worker) const;

  // ---- for checks of the contract (by the simulator)

  /// The first of the catalog's rules that does not hold (catalog/rules.hpp); empty: all hold.
  [[nodiscard]] std::string broken_rule() const;
  /// Visits every lease, in the order in which they were granted.
  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    for (const lease_id id : core().leases_in_order()) visit(core().leases.at(id));
  }
  /// The record of a worker; null: it has not joined.
  [[nodiscard]] const catalog_detail::worker_state* record_of(incarnation worker) const;
  /// The reason why a worker was declared dead; empty: it was not, or the record was forgotten since.
  [[nodiscard]] std::optional<catalog_detail::verdict> verdict_of(incarnation worker) const;
  /// The record of a model; null: none of its workers has joined.
  [[nodiscard]] const catalog_detail::model_state* record_of_model(const std::string& name) const;
  /// Whether the workers have asked to retain this version of a model.
  [[nodiscard]] bool retains(const std::string& model, version_number version) const;
  /// Whether a retained version is lost: no worker holds it any more, or its last holder could not hand it
  /// over.
  [[nodiscard]] bool has_lost(const std::string& model, version_number version) const;

 private:
  struct parts;

  [[nodiscard]] catalog_detail::core& core() noexcept;
  [[nodiscard]] const catalog_detail::core& core() const noexcept;
  void handle(const messages::envelope& envelope, const client_identity& client);
  void join(const messages::envelope& envelope, const client_identity& client);
  [[nodiscard]] bool ask(const messages::envelope& envelope, const client_rules& rules);
  void note_rights(catalog_detail::worker_state& worker, const client_rules& rules);
  void dispatch(catalog_detail::worker_state& worker, request_sequence sequence,
                const messages::message& body);
  template <typename Request>
  void give(catalog_detail::worker_state& worker, request_sequence sequence, const Request& request);
  /// Each event begins and ends with these.
  void begin(time_point now);
  void settle();
  void settle_all();
  void let_go();
  [[nodiscard]] bool has_waiting_requests() const noexcept;
  void expire_waiting(bool behind);

  std::unique_ptr<parts> parts_;
  time_point next_tick_{};
  time_point next_check_{};
  bool recovered_ = false;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/service/impl/catalog.ipp"
#endif
