#include <iostream>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#ifdef CONSUMER_HAS_VERBS
#include <tensorhub/transports/verbs.hpp>
#endif
#ifdef CONSUMER_HAS_CUDA
#include <tensorhub/memory/cuda.hpp>
#endif
#ifdef CONSUMER_HAS_TLS
#include <tensorhub/transports/tls.hpp>
#endif
#ifdef CONSUMER_HAS_PROMETHEUS
#include <tensorhub/prometheus.hpp>
#endif
#ifdef CONSUMER_HAS_ETCD
#include <tensorhub/etcd.hpp>
#endif
#ifdef CONSUMER_HAS_LIBFABRIC
#include <tensorhub/transports/libfabric.hpp>
#endif
#ifdef CONSUMER_HAS_TORCH
#include <tensorhub/torch.hpp>
#endif

template <typename Transport>
bool starts() {
  try {
    const Transport one{};
    return !one.address().text.empty();
  } catch (const tensorhub::error& e) {  // no device: the library is there all the same
    std::cout << e.what() << "\n";
    return e.code() == tensorhub::errc::transport_failed;
  }
}

int main() {
  tensorhub::reference_server<> server;
#ifdef CONSUMER_HAS_HUB
  using hub =
      tensorhub::hub<tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>>;
  float given[4] = {1, 2, 3, 4};
  float taken[4] = {};
  hub::publisher source{{.server = server.address(), .model = "m", .replica = "a"}};
  hub::subscriber reader{{.server = server.address(), .model = "m", .replica = "b"}};
  source.add("w", given, {4}, tensorhub::dtype::f32);
  reader.add("w", taken, {4}, tensorhub::dtype::f32);
  source.publish(1);
  bool good = reader.update().version == 1 && taken[3] == 4;
#else
  bool good = starts<tensorhub::transports::same_host>() && starts<tensorhub::transports::tcp>();
#endif
#ifdef CONSUMER_HAS_VERBS
  good = good && starts<tensorhub::transports::verbs>();
#endif
#ifdef CONSUMER_HAS_LIBFABRIC
  good = good && starts<tensorhub::transports::libfabric>();
#endif
#ifdef CONSUMER_HAS_TLS
  good = good && starts<tensorhub::transports::tls>();  // which says that it needs a certificate
#endif
#ifdef CONSUMER_HAS_PROMETHEUS
  tensorhub::prometheus_exporter exporter{{.address = "127.0.0.1:0"}};
  exporter.watch(server);
#ifdef CONSUMER_HAS_HUB
  exporter.watch(reader);
#endif
  good = good && !exporter.address().ends_with(":0");
#endif
#ifdef CONSUMER_HAS_ETCD
  const tensorhub::standby_server<> standby{{.server = {.address = "tcp://127.0.0.1:1"},
                                             .etcd = {.endpoints = "http://127.0.0.1:1"},  // nobody is there
                                             .election = {.name = "servers"}}};
  good = good && !standby.leads();
#endif
#ifdef CONSUMER_HAS_TORCH
  const std::vector<std::pair<std::string, at::TensorBase>> undefined{{"w", {}}};
  try {
    tensorhub::torch::add(source, undefined);
    good = false;
  } catch (const tensorhub::error& e) {
    good = good && e.code() == tensorhub::errc::invalid_argument;
  }
#endif
#ifdef CONSUMER_HAS_CUDA
  tensorhub::cuda_memory space;
  good = good && space.describe(taken, sizeof taken).kind == tensorhub::memory_kind::host;
  try {
    good = good && !space.allocate(64).range().host_accessible();
  } catch (const tensorhub::error& e) {  // no driver or no device: the component is there all the same
    std::cout << e.what() << "\n";
    good = good && e.code() == tensorhub::errc::system_failed;
  }
#endif
  return good ? 0 : 1;
}
