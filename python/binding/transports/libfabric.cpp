/// \file libfabric.cpp
/// The modules `tensorhub._libfabric` and `tensorhub._libfabric_cuda`: workers over libfabric.

#include <tensorhub/transports/libfabric.hpp>

#include "../transport_module.hpp"

namespace {

tensorhub::worker_policies make(const tensorhub_python::transport_options& given) {
  tensorhub::transports::libfabric::options through;
  if (!given.provider.empty()) through.provider = given.provider;
  if (!given.listen_host.empty()) through.listen_host = given.listen_host;
  through.listen_port = given.listen_port;
  through.advertised_host = given.advertised_host;
  through.device_memory = !tensorhub_python::module_memory::host_accessible;
  return tensorhub_python::policies_over<tensorhub::transports::libfabric>(given, std::move(through));
}

}  // namespace

TENSORHUB_PYTHON_DEFINE_MODULE(make)
