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
#include "transport_module.hpp"

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

/// The transports, and which options of the machine's network each of them has.
struct known_transport {
  const char* name;
  bool advertises;        ///< advertised_host
  const char* own;        ///< one more option; null: none
  const char* libraries;  ///< that its module needs; null: it is in this module
};
constexpr known_transport known_transports[] = {
    {"auto", true, nullptr, nullptr},
    {"tcp", true, nullptr, nullptr},
    {"same_host", false, nullptr, nullptr},
    {"verbs", false, "rdma_device", "libibverbs and librdmacm"},
    {"libfabric", true, "provider", "libfabric"},
};
constexpr const char* transport_fields[] = {"transport",       "listen_host", "listen_port",
                                            "advertised_host", "provider",    "rdma_device"};

const known_transport& transport_of(const std::string& name) {
  for (const known_transport& each : known_transports) {
    if (name == each.name) return each;
  }
  std::string all;
  for (const known_transport& each : known_transports)
    all += (all.empty() ? "'" : ", '") + std::string{each.name} + "'";
  throw error(errc::invalid_argument, "transport '" + name + "' does not exist: take one of " + all);
}

void refuse_unused(const known_transport& transport, const char* option, const std::string& value,
                   bool is_used) {
  if (!value.empty() && !is_used)
    throw error(errc::invalid_argument,
                "transport '" + std::string{transport.name} + "' has no option " + option + ": leave it out");
}

/// Imports the transport's module.
tensorhub::worker_policies from_module(const known_transport& transport, const transport_options& through) {
  const std::string module_name = std::string{"tensorhub._"} + transport.name;
  const auto refuse = [&](const std::string& reason) {
    throw error(errc::transport_failed,
                "transport '" + std::string{transport.name} + "' cannot be used here: " + reason);
  };
  void* maker = nullptr;
  try {
    const nb::module_ module = nb::module_::import_(module_name.c_str());
    if (nb::cast<long>(module.attr("version")) != library_version)
      refuse(module_name + " is of another version of this package: install the package again");
    maker = PyCapsule_GetPointer(nb::object{module.attr("maker")}.ptr(), maker_name);
    if (maker == nullptr) throw nb::python_error{};
  } catch (nb::python_error& e) {
    const std::string sentence = nb::cast<std::string>(nb::str(nb::handle{e.value()}));
    if (e.matches(PyExc_ModuleNotFoundError))
      refuse("this package was built without it; build it on a machine that has the development files of " +
             std::string{transport.libraries} + " (pip install --no-binary tensorhub tensorhub)");
    refuse(sentence + ". It needs " + transport.libraries + ": install them");
  }
  return reinterpret_cast<policies_maker>(maker)(through);
}

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
  transport_options through;
  fields from{given};
  from.take("transport", name);
  from.take("listen_host", through.listen_host);
  from.take("listen_port", through.listen_port);
  from.take("advertised_host", through.advertised_host);
  from.take("provider", through.provider);
  from.take("rdma_device", through.rdma_device);
  const known_transport& transport = transport_of(name);
  const std::string own = transport.own != nullptr ? transport.own : "";
  refuse_unused(transport, "advertised_host", through.advertised_host, transport.advertises);
  refuse_unused(transport, "provider", through.provider, own == "provider");
  refuse_unused(transport, "rdma_device", through.rdma_device, own == "rdma_device");
  if (transport.libraries != nullptr) return from_module(transport, through);
  if (name == "same_host") return policies_over<same_host>({});
  tcp::options by_tcp;
  if (!through.listen_host.empty()) by_tcp.listen_host = through.listen_host;
  by_tcp.listen_port = through.listen_port;
  by_tcp.advertised_host = through.advertised_host;
  if (name == "tcp") return policies_over<tcp>(std::move(by_tcp));
  return policies_over<near_or_tcp>(near_or_tcp::with(std::move(by_tcp)));
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
