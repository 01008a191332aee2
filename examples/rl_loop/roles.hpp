#pragma once
/// \file roles.hpp
/// What one process of the loop does, until the launcher says otherwise. Each throws when it cannot go on.

#include "options.hpp"

namespace rl_loop {

void run_server(const options& given);   // server.cpp
void run_trainer(const options& given);  // trainer.cpp
void run_rollout(const options& given);  // rollout.cpp
/// True: everything that the closing summary checks holds.
[[nodiscard]] bool run_launcher(const options& given);  // launcher.cpp

}  // namespace rl_loop
