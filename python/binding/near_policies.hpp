#pragma once
/// \file near_policies.hpp
/// The policies over the transports that every machine has: "auto", "tcp" and "same_host".

#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <utility>

#include "transport_module.hpp"

namespace tensorhub_python {

[[nodiscard]] inline tensorhub::worker_policies near_policies(const transport_options& given) {
  using tensorhub::transports::same_host;
  using tensorhub::transports::tcp;
  using near_or_tcp = tensorhub::first_of<same_host, tcp>;
  const auto near = given.for_tenants ? same_host::options::for_tenants() : same_host::options{};
  if (given.transport == "same_host") return policies_over<same_host>(given, near);
  tcp::options by_tcp;
  if (!given.listen_host.empty()) by_tcp.listen_host = given.listen_host;
  by_tcp.listen_port = given.listen_port;
  by_tcp.advertised_host = given.advertised_host;
  if (given.transport == "tcp") return policies_over<tcp>(given, std::move(by_tcp));
  return policies_over<near_or_tcp>(given, near_or_tcp::with(near, std::move(by_tcp)));
}

}  // namespace tensorhub_python
