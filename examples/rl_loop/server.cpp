// The reference server in a process of its own.

#include <tensorhub/server.hpp>

#include "link.hpp"
#include "process.hpp"
#include "roles.hpp"
#include "weights_hub.hpp"

namespace rl_loop {

/// A second one takes the place of the first, at the same address.
void run_server(const options& given) {
  link launcher{descriptor{link_fd}};
  hub::reference_server server{{.address = given.server == "none" ? "tcp://127.0.0.1:0" : given.server}};
  launcher.say(report{"serving"}.with("address", server.address()));
  while (!launcher.hear(std::chrono::hours{1})) {
  }
}

}  // namespace rl_loop
