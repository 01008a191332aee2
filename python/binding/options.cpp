/// \file options.cpp
/// Options of workers and servers from Python's dictionaries.

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <map>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tuple>

#include "calls.hpp"
#include "log.hpp"

namespace tensorhub_python {

namespace {

using tensorhub::transports::same_host;
using tensorhub::transports::tcp;
using near_or_tcp = tensorhub::first_of<same_host, tcp>;

/// The fields of a dictionary, each taken once; what is left at the end is unknown.
class fields {
 public:
  explicit fields(const nb::dict& given) : left_{nb::cast<nb::dict>(given.attr("copy")())} {}

  /// Into `out`, if it is there and not None.
  template <typename Value>
  void take(const char* name, Value& out) {
    if (!left_.contains(name)) return;
    const nb::object value = left_[name];
    nb::del(left_[name]);
    if (value.is_none()) return;
    if (!nb::try_cast(value, out))
      throw error(errc::invalid_argument, std::string{"option "} + name + " is " +
                                              nb::cast<std::string>(nb::repr(value)) +
                                              ", which is not of the option's type");
  }
  void take(const char* name, milliseconds& out) {
    double seconds = -1;
    take(name, seconds);
    if (seconds < 0) return;
    constexpr double longest = 365 * 24 * 3600.0;
    out = milliseconds{static_cast<std::int64_t>(std::min(seconds, longest) * 1e3)};
  }
  void end() const {
    for (const auto& [name, value] : left_)
      throw error(errc::invalid_argument, "there is no option " + nb::cast<std::string>(nb::repr(name)));
  }

 private:
  nb::dict left_;
};

template <typename Transport>
tensorhub::worker_policies over(typename Transport::options through) {
  return tensorhub::policies_of<Transport, tensorhub::group_consistent, tensorhub::xxh3_128,
                                tensorhub::host_memory>(std::move(through));
}

constexpr const char* transport_fields[] = {"transport", "listen_host", "listen_port", "advertised_host"};

}  // namespace

tensorhub::worker_options options_of(const nb::dict& given) {
  fields from{given};
  tensorhub::worker_options out;
  from.take("server", out.server);
  from.take("model", out.model);
  from.take("replica", out.replica);
  std::tuple<std::uint32_t, std::uint32_t> shard{0, 1};
  from.take("shard", shard);
  out.shard = {std::get<0>(shard), std::get<1>(shard)};
  from.take("datacenter", out.location.datacenter);
  from.take("rack", out.location.rack);
  from.take("host", out.location.host);
  from.take("device", out.location.device);
  from.take("spot", out.spot);
  from.take("chunk_bytes", out.chunk_bytes);
  from.take("lanes", out.lanes);
  from.take("window_chunks", out.window_chunks);
  from.take("far_window_chunks", out.far_window_chunks);
  from.take("offload_limit_bytes", out.offload_limit_bytes);
  from.take("join_timeout", out.join_timeout);
  from.take("drain_timeout", out.drain_timeout);
  from.take("connect_timeout", out.connect_timeout);
  from.take("server_timeout", out.server_timeout);
  tensorhub::client_security security;
  from.take("server_key", security.server_key);
  from.take("public_key", security.keys.public_key);
  from.take("secret_key", security.keys.secret_key);
  if (!security.server_key.empty() || !security.keys.public_key.empty() || !security.keys.secret_key.empty())
    out.security = std::move(security);
  for (const char* const each : transport_fields) {
    nb::object unused;
    from.take(each, unused);
  }
  from.end();
  out.log = put_line;
  return out;
}

tensorhub::worker_policies policies_of(const nb::dict& given) {
  std::string name = "auto";
  tcp::options through;
  fields from{given};
  from.take("transport", name);
  from.take("listen_host", through.listen_host);
  from.take("listen_port", through.listen_port);
  from.take("advertised_host", through.advertised_host);
  if (name == "auto") return over<near_or_tcp>(near_or_tcp::with(std::move(through)));
  if (name == "tcp") return over<tcp>(std::move(through));
  if (name == "same_host") return over<same_host>({});
  throw error(errc::invalid_argument,
              "transport '" + name + "' is not in this package: take 'auto', 'tcp' or 'same_host'");
}

tensorhub::reference_server_options server_options_of(const nb::dict& given) {
  fields from{given};
  tensorhub::reference_server_options out;
  from.take("address", out.address);
  from.take("worker_timeout", out.catalog.worker_timeout);
  from.take("group_timeout", out.catalog.group_timeout);
  from.take("recovery_grace", out.catalog.recovery_grace);
  tensorhub::server_security security;
  std::map<std::string, std::string> allowed;
  from.take("public_key", security.keys.public_key);
  from.take("secret_key", security.keys.secret_key);
  from.take("allowed", allowed);
  if (!security.keys.secret_key.empty() || !security.keys.public_key.empty() || !allowed.empty()) {
    security.allowed_clients = std::move(allowed);
    out.security = std::move(security);
  }
  from.end();
  out.log = put_line;
  return out;
}

tensorhub::version_selector selector_of(const std::string& kind, std::uint64_t version) {
  if (kind == "latest") return tensorhub::latest;
  if (kind == "exactly") return tensorhub::exactly(version);
  return tensorhub::at_least(version);
}

}  // namespace tensorhub_python
