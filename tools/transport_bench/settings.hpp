#pragma once
/// \file settings.hpp
/// What the user wants, checked.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "contender.hpp"
#include "memory.hpp"
#include "parse.hpp"

namespace transport_bench {

enum class role : std::uint8_t {
  both,     ///< forks the source; the data goes over loopback
  listen,   ///< the source
  connect,  ///< the reader
};

enum class corruption : std::uint8_t { none, source, target };

/// A transport that takes part, with its options.
struct contender_choice {
  std::string label{};  ///< "tcp", "libfabric:shm"; both sides must call it the same
  const transport_kind* kind = nullptr;
  option_values options{};
};

struct settings {
  role part = role::both;
  host_and_port where;   ///< control address
  bool forever = false;  ///< serve one reader after the other
  double wait_seconds = 600;

  std::vector<contender_choice> contenders{};
  bool all = false;  ///< what cannot run here is left out instead of an error

  // Ascending, never empty once parse_command_line has filled in the defaults.
  std::vector<std::uint64_t> sizes{};
  std::vector<std::uint64_t> depths{};
  std::vector<std::uint64_t> streams{};
  std::vector<std::uint64_t> threads{};
  double warm_up_seconds = 0.1;
  double duration_seconds = 1;
  std::uint64_t iterations = 0;  ///< per thread and row; 0: by duration
  std::uint64_t rounds = 5;
  std::uint64_t region_bytes = 0;  ///< 0: 256 MiB, or the largest size
  std::uint64_t regions = 1;
  memory_choice memory = memory_choice::file;
  bool busy_poll = false;

  bool validate = false;
  corruption corrupt = corruption::none;
  std::uint64_t seed = 1;

  double timeout_seconds = 10;
  std::string json_path{};
  std::uint64_t most_bytes = 0;  ///< that a reader may ask this side for; 0: what the machine has

  [[nodiscard]] double round_seconds() const { return duration_seconds / static_cast<double>(rounds); }
};

/// What a listening source makes for a stranger, unless --most says otherwise.
inline constexpr std::uint64_t default_most_bytes = 4ull << 30;
inline constexpr std::uint64_t max_region_bytes = 1ull << 40;
inline constexpr std::uint64_t max_regions = 1024;
inline constexpr std::size_t max_contenders = 16;
inline constexpr double max_round_seconds = 600;  ///< a round that counts reads, too, ends by then

/// A few seconds for work on so much memory (zeroing, registering, checking), on a slow machine.
[[nodiscard]] inline double allowance_seconds(std::uint64_t bytes) {
  return 1 + static_cast<double>(bytes) / (8u << 20);
}

enum class command : std::uint8_t { run, help, list };
struct command_line {
  command what = command::run;
  settings how{};
};

/// Throws usage_error.
[[nodiscard]] command_line parse_command_line(const std::vector<std::string>& words);
[[nodiscard]] std::string help_text();
/// The transports, and the options of each for --set.
[[nodiscard]] std::string list_text();

}  // namespace transport_bench
