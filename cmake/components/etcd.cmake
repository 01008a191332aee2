# Standby servers that etcd elects.
tensorhub_optional_component(
  etcd
  PACKAGE etcd-gateway
  HEADERS etcd.hpp etcd
  DEBIAN "libcurl4-openssl-dev nlohmann-json3-dev"
  LINK etcd-gateway::etcd-gateway)
if(TENSORHUB_BUILD_COMPILED AND TENSORHUB_HAS_ETCD)
  tensorhub_compiled_component(
    compiled_etcd
    OF etcd
    LINK TensorHub::etcd TensorHub::compiled)
endif()
