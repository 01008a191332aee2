/// \file options.cpp
/// Options of workers and servers from Python's dictionaries.

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cmath>
#include <map>
#include <tuple>

#include "calls.hpp"
#include "log.hpp"
#include "near_policies.hpp"

namespace tensorhub_python {

namespace {

/// The fields of a dictionary, each taken once; what is left at the end is unknown.
class fields {
 public:
  explicit fields(const nb::dict& given) : left_{nb::cast<nb::dict>(given.attr("copy")())} {}

  /// Into `out`, if it is there and not None: true.
  template <typename Value>
  bool take(const char* name, Value& out) {
    if (!left_.contains(name)) return false;
    const nb::object value = left_[name];
    nb::del(left_[name]);
    if (value.is_none()) return false;
    if (!nb::try_cast(value, out))
      throw error(errc::invalid_argument, std::string{"option "} + name + " is " +
                                              nb::cast<std::string>(nb::repr(value)) +
                                              ", which is not of the option's type");
    return true;
  }
  void take(const char* name, milliseconds& out) {
    double seconds = 0;
    if (!take(name, seconds)) return;
    if (!std::isfinite(seconds) || seconds < 0)
      throw error(errc::invalid_argument, std::string{"option "} + name + " is " +
                                              nb::cast<std::string>(nb::repr(nb::float_(seconds))) +
                                              ": give seconds, zero or more");
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
  bool listens;           ///< listen_host and listen_port
  bool advertises;        ///< advertised_host
  const char* own;        ///< one more option; null: none
  const char* libraries;  ///< that its module needs; null: it is in this module
};
constexpr known_transport known_transports[] = {
    {"auto", true, true, "for_tenants", nullptr},  // same_host, else tcp
    {"tcp", true, true, nullptr, nullptr},
    {"same_host", false, false, "for_tenants", nullptr},
    {"verbs", true, false, "rdma_device", "libibverbs and librdmacm"},
    {"libfabric", true, true, "provider", "libfabric"},
};
constexpr const char* policy_fields[] = {"transport", "listen_host", "listen_port", "advertised_host",
                                         "provider",  "rdma_device", "for_tenants", "memory"};

const known_transport& transport_of(const std::string& name) {
  for (const known_transport& each : known_transports) {
    if (name == each.name) return each;
  }
  std::string all;
  for (const known_transport& each : known_transports)
    all += (all.empty() ? "'" : ", '") + std::string{each.name} + "'";
  throw error(errc::invalid_argument, "transport '" + name + "' does not exist: take one of " + all);
}

void refuse_unused(const known_transport& transport, const char* option, bool is_given, bool is_used) {
  if (is_given && !is_used)
    throw error(errc::invalid_argument,
                "transport '" + std::string{transport.name} + "' has no option " + option + ": leave it out");
}

/// Imports an optional module. `what` is what it is for, `needs` what a machine must have for it.
const module_functions& functions_of(const std::string& name, const std::string& what,
                                     const std::string& needs) {
  const std::string module_name = "tensorhub." + name;
  const auto refuse = [&](const std::string& reason) {
    throw error(errc::transport_failed, what + " cannot be used here: " + reason);
  };
  void* functions = nullptr;
  try {
    const nb::module_ module = nb::module_::import_(module_name.c_str());
    if (nb::cast<long>(module.attr("version")) != library_version)
      refuse(module_name + " is of another version of this package: install the package again");
    functions = PyCapsule_GetPointer(nb::object{module.attr("functions")}.ptr(), capsule_name);
    if (functions == nullptr) throw nb::python_error{};
  } catch (nb::python_error& e) {
    const std::string sentence = nb::cast<std::string>(nb::str(nb::handle{e.value()}));
    if (e.matches(PyExc_ModuleNotFoundError))
      refuse(
          "this package was built without it; build it again on a machine that has the development files "
          "of " +
          needs + " (pip install --force-reinstall . in a clone)");
    refuse(sentence + ". It needs " + needs + ": install them");
  }
  return *static_cast<const module_functions*>(functions);
}

/// True for memory on CUDA devices.
bool is_cuda(const std::string& memory) {
  if (memory == "cuda") return true;
  if (memory == "host") return false;
  throw error(errc::invalid_argument, "memory '" + memory + "' does not exist: take 'host' or 'cuda'");
}

/// Empty: no keys are given.
std::optional<tensorhub::client_security> security_of(fields& from) {
  tensorhub::client_security security;
  bool is_given = from.take("server_key", security.server_key);
  is_given |= from.take("public_key", security.keys.public_key);
  is_given |= from.take("secret_key", security.keys.secret_key);
  from.take("trust_sources", security.trust_sources);
  if (!is_given && !security.trust_sources) return std::nullopt;
  return security;  // keys that are empty are refused where the others are
}

}  // namespace

tensorhub::server_client_options client_options_of(const nb::dict& given) {
  fields from{given};
  tensorhub::server_client_options out;
  from.take("server", out.server);
  from.take("server_timeout", out.server_timeout);
  out.security = security_of(from);
  from.end();
  return out;
}

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
  out.security = security_of(from);
  for (const char* const each : policy_fields) {
    nb::object unused;
    from.take(each, unused);
  }
  from.end();
  out.log = put_line;
  return out;
}

chosen_policies chosen_policies_of(const nb::dict& given) {
  transport_options through{.transport = "auto"};
  std::string memory = "host";
  fields from{given};
  from.take("transport", through.transport);
  from.take("listen_host", through.listen_host);
  from.take("listen_port", through.listen_port);
  from.take("advertised_host", through.advertised_host);
  from.take("provider", through.provider);
  from.take("rdma_device", through.rdma_device);
  from.take("for_tenants", through.for_tenants);
  from.take("memory", memory);
  const auto security = security_of(from);
  through.trusts_sources = !security || security->trust_sources;
  const known_transport& transport = transport_of(through.transport);
  const std::string own = transport.own != nullptr ? transport.own : "";
  refuse_unused(transport, "listen_host", !through.listen_host.empty(), transport.listens);
  refuse_unused(transport, "listen_port", through.listen_port != 0, transport.listens);
  refuse_unused(transport, "advertised_host", !through.advertised_host.empty(), transport.advertises);
  refuse_unused(transport, "provider", !through.provider.empty(), own == "provider");
  refuse_unused(transport, "rdma_device", !through.rdma_device.empty(), own == "rdma_device");
  refuse_unused(transport, "for_tenants", through.for_tenants, own == "for_tenants");
  const bool on_devices = is_cuda(memory);
  const bool is_near = transport.libraries == nullptr;
  if (is_near && !on_devices) return {near_policies(through), nullptr};
  std::string name = is_near ? "" : "_" + through.transport;
  std::string what = is_near ? "" : "transport '" + through.transport + "'";
  std::string needs = is_near ? "" : transport.libraries;
  if (on_devices) {
    name += "_cuda";
    what += (is_near ? "" : " with ") + std::string{"memory 'cuda'"};
    needs += (is_near ? "" : ", and ") + std::string{"the CUDA Toolkit"};
  }
  const module_functions& functions = functions_of(name, what, needs);
  return {functions.policies(through), functions.mark};
}

tensorhub::worker_policies policies_of(const nb::dict& given) {
  tensorhub::worker_policies chosen = chosen_policies_of(given).policies;
  // Python sees this memory as arrays of the host.
  chosen.make_data_plane = [make = std::move(chosen.make_data_plane)](
                               const tensorhub::worker_options& options, tensorhub::incarnation self,
                               const tensorhub::worker_role& role) {
    auto made = make(options, self, role);
    made->keep_on_host();
    return made;
  };
  return chosen;
}

tensorhub::reference_server_options server_options_of(const nb::dict& given) {
  fields from{given};
  tensorhub::reference_server_options out;
  from.take("address", out.address);
  from.take("worker_timeout", out.catalog.worker_timeout);
  from.take("group_timeout", out.catalog.group_timeout);
  from.take("late_shard_timeout", out.catalog.late_shard_timeout);
  from.take("recovery_grace", out.catalog.recovery_grace);
  tensorhub::server_security security;
  std::map<std::string, std::string> allowed;
  from.take("public_key", security.keys.public_key);
  from.take("secret_key", security.keys.secret_key);
  from.take("allowed", allowed);
  if (!security.keys.secret_key.empty() || !security.keys.public_key.empty() || !allowed.empty()) {
    for (auto& [key, line] : allowed) security.allowed_clients.emplace(key, tensorhub::client_rules_of(line));
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
