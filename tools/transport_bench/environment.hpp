#pragma once
/// \file environment.hpp
/// The stamp of a result: what machine and what network it was measured on. Nothing that names the machine or
/// its user.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace transport_bench {

/// Names and values in the order in which they are printed.
using facts = std::vector<std::pair<std::string, std::string>>;

/// Of this side. `host`: the address whose network interface is looked at.
[[nodiscard]] facts machine_facts(std::string_view host);

/// Of the program: version, git describe if known, compiler and build type.
[[nodiscard]] facts program_facts();

/// Seconds of CPU of this process, all threads, user and system.
[[nodiscard]] double cpu_seconds();

/// Now, as 2026-11-21T10:00:00Z.
[[nodiscard]] std::string utc_date();

/// Memory that can be had without swapping; 0 if not known.
[[nodiscard]] unsigned long long available_memory_bytes();

}  // namespace transport_bench
