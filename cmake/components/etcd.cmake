# Standby servers that etcd elects.
tensorhub_optional_component(
  etcd COMPILED
  PACKAGE etcd-gateway
  HEADERS etcd.hpp etcd
  DEBIAN "libcurl4-openssl-dev nlohmann-json3-dev"
  LINK etcd-gateway::etcd-gateway)
