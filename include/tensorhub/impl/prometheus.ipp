#pragma once
/// \file prometheus.ipp
/// Definitions of prometheus.hpp.

#include <array>
#include <cstddef>
#include <limits>

#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/prometheus.hpp"

namespace tensorhub::inline TENSORHUB_MODE::prometheus_detail {

TENSORHUB_DECL void page::counter(std::string_view name, std::string_view help, const labels& about,
                                  std::uint64_t value) {
  sample(name, help, prometheus::MetricType::Counter, about).counter.value = static_cast<double>(value);
}

TENSORHUB_DECL void page::histogram(std::string_view name, std::string_view help, const labels& about,
                                    const seconds_histogram& seen) {
  auto& out = sample(name, help, prometheus::MetricType::Histogram, about).histogram;
  out.sample_sum = seen.sum_seconds();
  for (std::size_t i = 0; i < seen.counts.size(); ++i) {
    out.sample_count += seen.counts[i];
    const bool last = i == seconds_histogram::bounds.size();
    out.bucket.push_back(
        {out.sample_count, last ? std::numeric_limits<double>::infinity() : seconds_histogram::bounds[i]});
  }
}

TENSORHUB_DECL void page::outcomes(std::string_view name, std::string_view help, labels about,
                                   std::string_view label, const outcome_counts& seen, std::uint64_t apart,
                                   bool with_ok) {
  about.push_back({std::string{label}, {}});
  for (std::size_t i = with_ok ? 0 : 1; i < outcome_counts::codes; ++i) {
    if (i != 0 && seen.by_code[i] == 0) continue;
    about.back().value = std::string{to_string(static_cast<errc>(i))};
    counter(name, help, about, seen.by_code[i] - (i == 0 ? apart : 0));
  }
}

TENSORHUB_DECL prometheus::ClientMetric& page::sample(std::string_view name, std::string_view help,
                                                      prometheus::MetricType type, const labels& about) {
  for (prometheus::MetricFamily& family : families_) {
    if (family.name == name) return with(family, about);
  }
  prometheus::MetricFamily& fresh = families_.emplace_back();
  fresh.name = name;
  fresh.help = help;
  fresh.type = type;
  return with(fresh, about);
}

TENSORHUB_DECL prometheus::ClientMetric& page::with(prometheus::MetricFamily& family, const labels& about) {
  family.metric.emplace_back().label = about;
  return family.metric.back();
}

TENSORHUB_DECL void write_refusals(page& out, const reference_server_statistics& seen,
                                   const page::labels& about) {
  out.counter("tensorhub_server_flooding_connections_total", "Closed: they sent too much.", about,
              seen.flooding_connections);
  out.counter("tensorhub_server_descriptor_shortages_total",
              "Looks, one a second, that found no descriptor left for another connection.", about,
              seen.descriptor_shortages);
  out.counter("tensorhub_server_refused_connections_total", "Of keys that are not on the allow-list.", about,
              seen.refused_connections);
  out.counter("tensorhub_server_failed_handshakes_total", "Connections without CURVE, or with a wrong key.",
              about, seen.failed_handshakes);
  out.counter("tensorhub_server_blocked_networks_total", "Times that a network was blocked for a while.",
              about, seen.blocked_networks);
  out.counter("tensorhub_server_forged_messages_total", "Dropped: of another key's worker.", about,
              seen.forged_messages);
  out.counter("tensorhub_server_revoked_messages_total", "Dropped: of a revoked key.", about,
              seen.revoked_messages);
}

TENSORHUB_DECL void write(page& out, const reference_server_statistics& seen, const page::labels& about) {
  out.gauge("tensorhub_server_workers", "Workers that have joined.", about,
            static_cast<double>(seen.workers));
  out.gauge("tensorhub_server_replicas", "Replicas with a worker.", about,
            static_cast<double>(seen.replicas));
  out.gauge("tensorhub_server_models", "Models with a worker.", about, static_cast<double>(seen.models));
  out.gauge("tensorhub_server_leases", "Permissions to read that last.", about,
            static_cast<double>(seen.leases));
  out.gauge("tensorhub_server_operations", "Group calls that have not ended.", about,
            static_cast<double>(seen.operations));
  out.gauge("tensorhub_server_cut_offs", "Readers whose cut-off is not confirmed.", about,
            static_cast<double>(seen.cut_offs));
  out.counter("tensorhub_server_messages_total", "Messages understood.", about, seen.messages);
  out.counter("tensorhub_server_bad_frames_total", "Frames dropped.", about, seen.bad_frames);
  out.counter("tensorhub_server_crowded_messages_total", "Dropped: a connection spoke for too many workers.",
              about, seen.crowded_messages);
  out.counter("tensorhub_server_unread_answers_total",
              "Not sent: nobody takes those before, or too many are asked for.", about, seen.unread_answers);
  write_refusals(out, seen, about);
  out.counter("tensorhub_server_workers_joined_total", "Workers that joined.", about, seen.workers_joined);
  out.counter("tensorhub_server_workers_left_total", "Workers that left politely.", about, seen.workers_left);
  out.counter("tensorhub_server_workers_dead_total", "Workers declared dead.", about, seen.workers_dead);
  out.counter("tensorhub_server_workers_replaced_total", "Workers replaced by a newer process.", about,
              seen.workers_replaced);
  out.counter("tensorhub_server_workers_unruly_total", "Workers declared dead that had broken the protocol.",
              about, seen.workers_unruly);
  out.counter("tensorhub_server_requests_refused_total", "Requests for which the key lacks the right.", about,
              seen.requests_refused);
  out.outcomes("tensorhub_server_joins_refused_total", "Joins refused.", about, "reason", seen.joins_refused,
               0, false);
  out.outcomes("tensorhub_server_publishes_total", "Publishes answered.", about, "result", seen.publishes);
  out.outcomes("tensorhub_server_updates_total", "Updates ended, per shard.", about, "result", seen.updates,
               seen.updates_kept);
  auto kept = about;
  kept.push_back({"result", "kept"});
  out.counter("tensorhub_server_updates_total", "", kept, seen.updates_kept);
  out.outcomes("tensorhub_server_sources_failed_total", "Sources that readers gave up.", about, "reason",
               seen.sources_failed, 0, false);
  out.counter("tensorhub_server_stalls_total", "Readers without news from any source.", about, seen.stalls);
  out.counter("tensorhub_server_shortages_total",
              "Readers whose sources are all receiving, and do not keep up with them.", about,
              seen.shortages.reported);
  out.counter("tensorhub_server_sources_exchanged_total",
              "After such a report: one of the sources, for one that has the whole version.", about,
              seen.shortages.exchanged);
  out.counter("tensorhub_server_assignments_total", "Sources that readers were told.", about,
              seen.assignments);
  out.counter("tensorhub_server_crossings_total", "Of these, in another datacenter.", about, seen.crossings);
  out.counter("tensorhub_server_sources_taken_back_total",
              "Sources taken from readers that received nothing, for readers that had none.", about,
              seen.sources_taken_back);
  out.counter("tensorhub_server_drains_total", "Drains answered.", about, seen.drain.count());
  out.counter("tensorhub_server_drains_forced_total", "Drains that ended by cutting off readers.", about,
              seen.drains_forced);
  out.counter("tensorhub_server_cut_offs_total", "Leases of readers declared dead.", about,
              seen.cut_offs_begun);
  out.histogram("tensorhub_server_update_wait_seconds", "Time to answer an update.", about, seen.update_wait);
  out.histogram("tensorhub_server_drain_seconds", "Time to answer a drain.", about, seen.drain);
}

TENSORHUB_DECL void write(page& out, const worker_statistics& seen, page::labels about) {
  about.insert(about.begin(),
               {{"model", seen.model}, {"replica", seen.replica}, {"shard", std::to_string(seen.shard)}});
  out.outcomes("tensorhub_publishes_total", "Publishes ended.", about, "result", seen.publishes);
  out.outcomes("tensorhub_unpublishes_total", "Unpublishes ended.", about, "result", seen.unpublishes);
  out.outcomes("tensorhub_updates_total", "Updates ended.", about, "result", seen.updates, seen.updates_kept);
  auto kept = about;
  kept.push_back({"result", "kept"});
  out.counter("tensorhub_updates_total", "", kept, seen.updates_kept);
  for (const path_bytes& part : seen.received) {
    auto path = about;
    path.push_back({"path", part.path});
    path.push_back({"crossing", part.crossing ? "true" : "false"});
    out.counter("tensorhub_received_bytes_total", "Bytes of weights received.", path, part.bytes);
  }
  out.counter("tensorhub_unchanged_bytes_total", "Bytes of versions that were there already.", about,
              seen.unchanged_bytes);
  out.counter("tensorhub_received_chunks_total", "Chunks received and verified.", about, seen.chunks);
  out.outcomes("tensorhub_sources_failed_total", "Sources given up during a transfer.", about, "reason",
               seen.sources_failed, 0, false);
  out.counter("tensorhub_stalls_total", "Times that no source had anything new.", about, seen.stalls);
  out.counter("tensorhub_drains_forced_total", "Unpublishes whose deadline came.", about, seen.drains_forced);
  out.counter("tensorhub_readers_moved_total", "Readers that went on elsewhere.", about, seen.readers_moved);
  out.counter("tensorhub_readers_cut_off_total", "Dead readers that were cut off.", about,
              seen.readers_cut_off);
  out.histogram("tensorhub_publish_seconds", "Whole publishes.", about, seen.publish);
  out.histogram("tensorhub_digest_seconds", "Packing and digesting of a publish.", about, seen.digest);
  out.histogram("tensorhub_unpublish_seconds", "Whole unpublishes: the drain.", about, seen.unpublish);
  out.histogram("tensorhub_update_seconds", "Whole updates.", about, seen.update);
  out.histogram("tensorhub_wait_seconds", "Of an update, until its transfer began.", about, seen.wait);
  out.histogram("tensorhub_pull_seconds", "Of an update, its transfer.", about, seen.pull);
  out.gauge("tensorhub_registration_seconds", "What registering the memory took.", about,
            seen.registration.seconds);
  out.gauge("tensorhub_registered_bytes", "Memory registered.", about,
            static_cast<double>(seen.registration.bytes + seen.registration.padding_bytes));
}

TENSORHUB_DECL void write(page& out, const std::vector<model_versions>& seen, const page::labels& about) {
  for (const model_versions& each : seen) {
    auto of = about;
    of.insert(of.begin(), {"model", each.model});
    out.gauge("tensorhub_server_latest_version", "The latest that was ever complete; 0: none.", of,
              static_cast<double>(each.latest));
    out.gauge("tensorhub_server_available_versions", "Versions that a replica holds completely.", of,
              static_cast<double>(each.available));
  }
}

TENSORHUB_DECL void write(page& out, const candidacy& seen, const page::labels& about) {
  out.gauge("tensorhub_server_leading", "1: this candidate serves, 0: another one, or none.", about,
            seen.leads ? 1 : 0);
  out.gauge("tensorhub_server_term", "The last in which this candidate led; 0: it never has.", about,
            static_cast<double>(seen.term));
  out.gauge("tensorhub_server_etcd_answers", "1: etcd has answered the latest request, 0: it has not.", about,
            seen.etcd_answers ? 1 : 0);
}

TENSORHUB_DECL page::labels checked(const metric_labels& given) {
  static constexpr std::string_view first_letters = "_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static constexpr std::array<std::string_view, 8> taken{"model",  "replica", "shard",    "result",
                                                         "reason", "path",    "crossing", "le"};
  page::labels out;
  for (const auto& label : given) {
    const std::string& name = label.first;
    const std::string_view rest = std::string_view{name}.substr(name.empty() ? 0 : 1);
    const bool is_name =
        !name.empty() && first_letters.find(name.front()) != std::string_view::npos &&
        detail::all_of(rest, [](char each) {
          return first_letters.find(each) != std::string_view::npos || (each >= '0' && each <= '9');
        });
    const auto is_same = [&](const auto& other) { return other.name == name; };
    if (!is_name || name.starts_with("__") || detail::contains(taken, name) || detail::any_of(out, is_same))
      throw error(
          errc::invalid_argument,
          "the label '" + name +
              "' cannot be one of a metric: take letters, digits and underscores, "
              "each name once, and none that the metrics have themselves (model, replica, shard, result, "
              "reason, path, crossing, le)");
    out.push_back({name, label.second});
  }
  return out;
}

TENSORHUB_DECL void watched::add(const void* whom, writer how) {
  const std::lock_guard lock{mutex_};
  writers_.emplace_back(whom, std::move(how));
}

TENSORHUB_DECL void watched::remove(const void* whom) {
  const std::lock_guard lock{mutex_};
  std::erase_if(writers_, [whom](const auto& entry) { return entry.first == whom; });
}

TENSORHUB_DECL std::vector<prometheus::MetricFamily> watched::Collect() const {
  page out;
  const std::lock_guard lock{mutex_};
  for (const auto& [whom, write_one] : writers_) write_one(out);
  return out.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::prometheus_detail

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL prometheus_exporter::prometheus_exporter(prometheus_options how) {
  const std::size_t colon = how.address.rfind(':');
  if (colon == std::string::npos || how.path.empty() || how.path.front() != '/') {
    throw error(errc::invalid_argument, "prometheus_options: '" + how.address + "', '" + how.path +
                                            "': an address looks like 127.0.0.1:9464, a path like /metrics");
  }
  try {
    // A connection that says nothing keeps a thread of civetweb until its time is over: 30 s by default.
    exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
        "listening_ports", how.address, "num_threads", "4", "request_timeout_ms", "1000"});
    exposer_->RegisterCollectable(watched_, how.path);
  } catch (const std::exception& e) {
    throw error(errc::transport_failed,
                "the Prometheus endpoint cannot listen at '" + how.address + "': " + e.what());
  }
  const std::vector<int> ports = exposer_->GetListeningPorts();
  address_ = how.address.substr(0, colon + 1) + std::to_string(ports.empty() ? 0 : ports.front());
}

}  // namespace tensorhub::inline TENSORHUB_MODE
