// A header of each target, and a function of a library that the core links: quick to compile.
#include <tensorhub/security.hpp>
#include <tensorhub/transports/same_host/options.hpp>
#include <tensorhub/transports/tcp/options.hpp>

int main() {
  const tensorhub::transports::tcp_options tcp;
  const tensorhub::transports::same_host_options same_host;
  const bool good = tcp.listen_port == 0 && same_host.copy_threads == 0;
  return good && !tensorhub::make_curve_keys().public_key.empty() ? 0 : 1;
}
