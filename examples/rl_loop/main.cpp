// rl_loop: reinforcement learning with weights that travel by TensorHub. `rl_loop --help` lists the options.
//
// One program, five kinds of process:
//
//     launcher -+- server                                 the reference server: who holds what
//               +- trainer-0/0, trainer-0/1               learn; publish each version in place (trainer.cpp)
//               +- rollout-N/0, rollout-N/1, for every N  play; pull versions from whom holds them
//               (rollout.cpp)

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "options.hpp"
#include "roles.hpp"

int main(int argc, char** argv) {
  std::string who = "rl_loop";
  try {
    const rl_loop::options given = rl_loop::parse_options(argc, argv);
    if (given.help) {
      std::cout << rl_loop::usage;
      return EXIT_SUCCESS;
    }
    if (given.role == "launcher") return rl_loop::run_launcher(given) ? EXIT_SUCCESS : EXIT_FAILURE;
    who = given.name + (given.role == "server" ? "" : "/" + std::to_string(given.rank));
    if (given.role == "server") {
      rl_loop::run_server(given);
    } else if (given.role == "trainer") {
      rl_loop::run_trainer(given);
    } else if (given.role == "rollout") {
      rl_loop::run_rollout(given);
    } else {
      throw std::runtime_error("there is no role '" + given.role + "'");
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& problem) {
    std::cerr << who << ": " << problem.what() << std::endl;
    return EXIT_FAILURE;
  }
}
