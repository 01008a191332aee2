# Metrics for Prometheus.
tensorhub_optional_component(
  prometheus COMPILED
  PACKAGE prometheus-cpp
  HEADERS prometheus.hpp
  DEBIAN "prometheus-cpp-dev"
  LINK prometheus-cpp::pull)
