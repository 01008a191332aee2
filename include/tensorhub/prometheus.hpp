#pragma once
/// \file prometheus.hpp
/// Statistics of a server and of workers for Prometheus: an optional component, `TensorHub::prometheus`.
///
///     hub::reference_server server;
///     hub::subscriber rollout{...};
///     tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:9464"}};
///     exporter.watch(server);
///     exporter.watch(rollout);          // curl http://127.0.0.1:9464/metrics
///
/// Nothing is collected in the background: a scrape reads the counters (`statistics()`), at no cost for the
/// server's thread and the transfers. Names follow the conventions of Prometheus: `_total` for counters, base
/// units (seconds, bytes), one family per quantity:
///
/// | of a worker (labels model, replica, shard, and yours)  | of a server                                  |
/// |---------------------------------------------------------|----------------------------------------------|
/// | tensorhub_updates_total{result="ok", "kept", or a code} | tensorhub_server_updates_total{result}       |
/// | tensorhub_publishes_total, _unpublishes_total {result}  | tensorhub_server_publishes_total{result}     |
/// | tensorhub_received_bytes_total{path, crossing}          | tensorhub_server_messages_total, _bad_frames_|
/// | tensorhub_received_chunks_total, _stalls_total          | tensorhub_server_workers, _replicas, _leases |
/// | tensorhub_unchanged_bytes_total                         |                                              |
/// | tensorhub_sources_failed_total{reason}                  | tensorhub_server_sources_failed_total{reason}|
/// |                                                         | tensorhub_server_sources_exchanged_total     |
/// | tensorhub_update_seconds, _wait_, _pull_, _publish_,    | tensorhub_server_update_wait_seconds,        |
/// |   _digest_, _unpublish_seconds (histograms)             |   _drain_seconds (histograms)                |
///
/// Of a server also, for each model that has a worker (label model), tensorhub_server_latest_version and
/// tensorhub_server_available_versions (up to a second old), and of a candidate of an election (etcd.hpp)
/// tensorhub_server_leading (1 or 0), tensorhub_server_term and tensorhub_server_etcd_answers (1 or 0): alert
/// where the sum of `leading` is not 1, or `etcd_answers` is 0.
///
/// Results and reasons are the names of `errc`; codes that have not occurred are left out. The endpoint
/// speaks plain HTTP without authentication; by default it listens on the loopback interface. Where others
/// reach it, put a proxy before it.
///
/// Built on prometheus-cpp (its HTTP server is civetweb). Thread safety: every member, from any thread.

#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/server.hpp"
#include "tensorhub/service/statistics.hpp"
#include "tensorhub/worker/statistics.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct prometheus_options {
  std::string address = "127.0.0.1:9464";  ///< host:port; port 0: any free port
  std::string path = "/metrics";
};

/// Additional labels of one watched object: name and value.
using metric_labels = std::vector<std::pair<std::string, std::string>>;

namespace prometheus_detail {

/// Families by name, in the order of their first sample. A family may have samples of several objects.
class page {
 public:
  using labels = std::vector<prometheus::ClientMetric::Label>;

  void counter(std::string_view name, std::string_view help, const labels& about, std::uint64_t value);
  void gauge(std::string_view name, std::string_view help, const labels& about, double value) {
    sample(name, help, prometheus::MetricType::Gauge, about).gauge.value = value;
  }
  void histogram(std::string_view name, std::string_view help, const labels& about,
                 const seconds_histogram& seen);
  /// Writes one counter per error code that has occurred. Successes are always written if `with_ok` is set.
  void outcomes(std::string_view name, std::string_view help, labels about, std::string_view label,
                const outcome_counts& seen, std::uint64_t apart = 0, bool with_ok = true);

  [[nodiscard]] std::vector<prometheus::MetricFamily> take() { return std::move(families_); }

 private:
  prometheus::ClientMetric& sample(std::string_view name, std::string_view help, prometheus::MetricType type,
                                   const labels& about);
  static prometheus::ClientMetric& with(prometheus::MetricFamily& family, const labels& about);

  std::vector<prometheus::MetricFamily> families_;
};

/// Throws `invalid_argument` for a name that Prometheus would not read, or that the samples have themselves:
/// one such label would make the whole page unreadable.
[[nodiscard]] page::labels checked(const metric_labels& given);

void write(page& out, const reference_server_statistics& seen, const page::labels& about);

void write(page& out, const worker_statistics& seen, page::labels about);

void write(page& out, const std::vector<model_versions>& seen, const page::labels& about);

/// Of a candidate of an election.
struct candidacy {
  bool leads = false;
  std::uint64_t term = 0;
  bool etcd_answers = false;
};
void write(page& out, const candidacy& seen, const page::labels& about);

/// The watched objects, which a scrape reads.
class watched final : public prometheus::Collectable {
 public:
  using writer = std::function<void(page&)>;

  void add(const void* whom, writer how);
  void remove(const void* whom);
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<const void*, writer>> writers_;
};

}  // namespace prometheus_detail

/// An HTTP endpoint that Prometheus scrapes. A watched object must outlive the exporter, or be passed to
/// `forget` first.
class prometheus_exporter {
 public:
  /// Listens at once. Throws `transport_failed` if the address cannot be bound.
  explicit prometheus_exporter(prometheus_options how = {});
  prometheus_exporter(const prometheus_exporter&) = delete;
  prometheus_exporter& operator=(const prometheus_exporter&) = delete;

  /// The address at which the exporter listens: host:port, with the port that was bound.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  /// Adds the statistics of `object` to all later scrapes. `object` is a reference server or a candidate, a
  /// publisher, a subscriber (where that has two workers, both), or any object with the same `statistics()`.
  /// `labels` must distinguish two servers; workers add their model, replica and shard themselves. Throws
  /// `invalid_argument` for a label that Prometheus would not read, or that a sample has itself.
  template <typename Object>
  requires std::same_as<decltype(std::declval<const Object&>().statistics()), reference_server_statistics> ||
      std::same_as<decltype(std::declval<const Object&>().statistics()), worker_statistics>
  void watch(const Object& object, const metric_labels& labels = {}) {
    watched_->add(&object, [&object,
                            about = prometheus_detail::checked(labels)](prometheus_detail::page& out) {
      prometheus_detail::write(out, object.statistics(), about);
      if constexpr (requires { object.versions(); }) prometheus_detail::write(out, object.versions(), about);
      if constexpr (requires { object.etcd_answers(); })
        prometheus_detail::write(
            out, prometheus_detail::candidacy{object.leads(), object.term(), object.etcd_answers()}, about);
      if constexpr (requires {
                      object.stage_statistics();
                      object.mode();
                    })
        if (object.mode() != decltype(object.mode())::in_place)
          prometheus_detail::write(out, object.stage_statistics(), about);
    });
  }
  /// Removes an object: when this returns, no scrape reads it.
  template <typename Object>
  void forget(const Object& object) {
    watched_->remove(&object);
  }

 private:
  std::shared_ptr<prometheus_detail::watched> watched_ = std::make_shared<prometheus_detail::watched>();
  std::string address_;
  std::unique_ptr<prometheus::Exposer> exposer_;  ///< last member: its threads read the members above
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/impl/prometheus.ipp"
#endif
