# Metrics for Prometheus.
tensorhub_optional_component(
  prometheus
  PACKAGE prometheus-cpp
  HEADERS prometheus.hpp
  DEBIAN "prometheus-cpp-dev"
  LINK prometheus-cpp::pull)
if(TENSORHUB_BUILD_COMPILED AND TENSORHUB_HAS_PROMETHEUS)
  tensorhub_compiled_component(
    compiled_prometheus
    OF prometheus
    LINK TensorHub::prometheus TensorHub::compiled)
endif()
