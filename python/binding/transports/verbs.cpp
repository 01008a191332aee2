/// \file verbs.cpp
/// The module `tensorhub._verbs`: workers over RDMA verbs, for `tensorhub._core`.

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
  return tensorhub_python::policies_over<tensorhub::transports::verbs>(std::move(through));
}

PyModuleDef definition{.m_base = PyModuleDef_HEAD_INIT,
                       .m_name = "_verbs",
                       .m_doc = "Workers over RDMA verbs, for tensorhub._core.",
                       .m_size = -1,
                       .m_methods = nullptr,
                       .m_slots = nullptr,
                       .m_traverse = nullptr,
                       .m_clear = nullptr,
                       .m_free = nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__verbs() {
  return tensorhub_python::make_transport_module(definition, make);
}
