#include <iostream>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#ifdef CONSUMER_HAS_VERBS
#include <tensorhub/transports/verbs.hpp>
#endif
#ifdef CONSUMER_HAS_LIBFABRIC
#include <tensorhub/transports/libfabric.hpp>
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
  using hub =
      tensorhub::hub<tensorhub::first_of<tensorhub::transports::same_host, tensorhub::transports::tcp>>;
  hub::reference_server server;
  float given[4] = {1, 2, 3, 4};
  float taken[4] = {};
  hub::publisher source{{.server = server.address(), .model = "m", .replica = "a"}};
  hub::subscriber reader{{.server = server.address(), .model = "m", .replica = "b"}};
  source.add("w", given, {4}, tensorhub::dtype::f32);
  reader.add("w", taken, {4}, tensorhub::dtype::f32);
  source.publish(1);
  bool good = reader.update().version == 1 && taken[3] == 4;
#ifdef CONSUMER_HAS_VERBS
  good = good && starts<tensorhub::transports::verbs>();
#endif
#ifdef CONSUMER_HAS_LIBFABRIC
  good = good && starts<tensorhub::transports::libfabric>();
#endif
  return good ? 0 : 1;
}
