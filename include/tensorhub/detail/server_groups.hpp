#pragma once
/// \file server_groups.hpp
/// Options that name servers, also those of many models: "tcp://a:5570, tcp://a2:5570 | tcp://b:5570".
/// Between bars are groups, which share nothing; the servers of one group may take over from each other.
/// Each model belongs to one group.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// The parts between the bars. The result is never empty: a text without a bar is one group.
[[nodiscard]] std::vector<std::string> split_groups(const std::string& list);

/// Below `groups`. By the highest random weight (D. Thaler, C. Ravishankar, "Using name-based mappings to
/// increase hit rates", IEEE/ACM Transactions on Networking 6, 1998): one group more at the end takes its
/// share of the models, and all others stay where they are. Part of the protocol: every process has to choose
/// alike.
[[nodiscard]] std::size_t group_of_model(std::string_view model, std::size_t groups) noexcept;

/// An address of a server: "tcp://host:port" with a port from `lowest` on that exists, which ZeroMQ does not
/// check (it takes 65537 for 1), or one of another protocol.
[[nodiscard]] bool is_server_address(std::string_view address, unsigned lowest) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/server_groups.ipp"
#endif
