/// \file verbs.cpp
/// The modules `tensorhub._verbs` and `tensorhub._verbs_cuda`: workers over RDMA verbs.

#include <sstream>
#include <string>
#include <tensorhub/transports/verbs.hpp>

#include "../transport_module.hpp"

namespace {

tensorhub::worker_policies make(const tensorhub_python::transport_options& given) {
  tensorhub::transports::verbs::options through;
  std::istringstream addresses{given.listen_host};
  for (std::string each; std::getline(addresses, each, ',');) through.listen_addresses.push_back(each);
  through.listen_port = given.listen_port;
  through.device = given.rdma_device;
  return tensorhub_python::policies_over<tensorhub::transports::verbs>(given, std::move(through));
}

}  // namespace

TENSORHUB_PYTHON_DEFINE_MODULE(make)
