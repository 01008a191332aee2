#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

int main() {
  using hub = tensorhub::hub<tensorhub::transports::tcp>;
  hub::reference_server server;
  float given[4] = {1, 2, 3, 4};
  float taken[4] = {};
  hub::publisher source{{.server = server.address(), .model = "m", .replica = "a"}};
  hub::subscriber reader{{.server = server.address(), .model = "m", .replica = "b"}};
  source.add("w", given, {4}, tensorhub::dtype::f32);
  reader.add("w", taken, {4}, tensorhub::dtype::f32);
  source.publish(1);
  return reader.update().version == 1 && taken[3] == 4 ? 0 : 1;
}
