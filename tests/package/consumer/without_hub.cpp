#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>

int main() {
  const tensorhub::transports::tcp one{};
  return one.address().text.empty() ? 1 : 0;
}
