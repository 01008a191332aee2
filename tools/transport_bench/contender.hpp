#pragma once
/// \file contender.hpp
/// A transport as the rest of the tool sees it. Which transports there are is decided at run time, so the two
/// sides are classes with virtual functions; one call covers a whole round of reads, and the loop inside of
/// it is a template over the concept (transport_run.hpp).

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "option_table.hpp"
#include "statistics.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"

namespace transport_bench {

/// What one side's transport object is made of.
struct party_settings {
  option_values options{};
  std::string host{};  ///< this side's address of the control connection: what the data goes over by default
  std::chrono::milliseconds peer_timeout{};
  std::size_t streams = 1;
  tensorhub::incarnation self{};
};

/// A source's transport as its reader needs to know it.
struct source_description {
  tensorhub::transport_address address{};
  tensorhub::incarnation self{};
  std::vector<tensorhub::remote_region> regions{};
  double create_seconds = 0;    ///< making the transport object
  double register_seconds = 0;  ///< all regions together
};

class bench_source {
 public:
  virtual ~bench_source() = default;
  /// Registers the ranges for readers. Throws tensorhub::error.
  [[nodiscard]] virtual source_description expose(std::span<const tensorhub::memory_range> ranges) = 0;
};

/// One round of one row of the sweep.
struct round_plan {
  std::uint64_t size = 0;
  std::size_t depth = 1;               ///< reads outstanding per thread
  double seconds = 0;                  ///< new reads are posted for so long ...
  std::uint64_t reads_per_thread = 0;  ///< ... or, if this is not zero, so many of them
  bool busy_poll = false;              ///< poll without ever waiting
  double silence_seconds = 30;         ///< no completion for so long: the round has failed
  double limit_seconds = 600;          ///< so long for the whole round, too
};

struct round_figures {
  std::uint64_t reads = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;                        ///< from the first post to the last completion, over all threads
  std::vector<latency_samples> latencies{};  ///< one per thread
};

/// The reads walk over the regions: of the places of `size` bytes, one after the other in all regions,
/// thread t of T reads number t, t + T, t + 2T, ... and starts over at the end. The target has the same
/// regions as the source, and bytes arrive where they were.
class bench_reader {
 public:
  virtual ~bench_reader() = default;
  /// Returns the seconds it took. Throws tensorhub::error.
  [[nodiscard]] virtual double register_targets(std::span<const tensorhub::memory_range> ranges) = 0;
  /// A queue and an endpoint for each thread; the seconds each connection took.
  [[nodiscard]] virtual std::vector<double> connect(const source_description& source, std::size_t threads,
                                                    std::size_t depth, std::chrono::nanoseconds timeout) = 0;
  virtual void disconnect() noexcept = 0;
  /// Throws std::runtime_error if a read fails, naming its status.
  [[nodiscard]] virtual round_figures run(const round_plan& plan) = 0;
  /// The walks of all threads begin anew.
  virtual void restart_walk() = 0;
  /// Reads of each thread since `restart_walk`.
  [[nodiscard]] virtual std::vector<std::uint64_t> walked() const = 0;
};

/// A transport that this program may have been built with.
struct transport_kind {
  std::string_view name{};
  bool built = false;
  std::string_view needs{};        ///< if it is not built: what was missing
  std::string_view streams_are{};  ///< what `--streams` sets; empty: nothing
  std::string_view summary{};
  std::vector<option_help> options{};
  std::unique_ptr<bench_source> (*make_source)(const party_settings&) = nullptr;
  std::unique_ptr<bench_reader> (*make_reader)(const party_settings&) = nullptr;
  void (*check)(const option_values&) = nullptr;  ///< throws usage_error for values that do not parse
};

/// All that are known by name, built or not, in the order of the help text.
[[nodiscard]] const std::vector<transport_kind>& transport_kinds();
/// Throws usage_error for names that are unknown or not built in.
[[nodiscard]] const transport_kind& kind_named(std::string_view name);

}  // namespace transport_bench
