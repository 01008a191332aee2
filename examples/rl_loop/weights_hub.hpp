#pragma once
/// \file weights_hub.hpp
/// The one hub type of the loop: its server, trainers and rollouts agree on transport and policies by it.

#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

namespace rl_loop {

using hub = tensorhub::hub<tensorhub::transports::tcp>;

}  // namespace rl_loop
