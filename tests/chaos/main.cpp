// Chaos with real processes: in each round one process of a running exchange of weights is killed or stopped.
//
//     chaos [--transport tcp|same_host] [--rounds N] [--seed FIRST] [--mib N] [--readers N]
//                 [--retention]
//                 [--events] [--smoke]
//     chaos --only-source [--rounds N] [--mib N]   how long until readers are told that it is gone

#include <charconv>
#include <cstring>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "only_source.hpp"
#include "report.hpp"

namespace {

struct settings {
  std::string transport = "tcp";
  std::uint64_t rounds = 100, seed = 1, mib = 32;
  std::uint64_t readers = 3;
  bool retention = false;
  bool events = false;
  bool only_source = false;
};

settings parse(int argc, char** argv) {
  settings out;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto number = [&](std::uint64_t& into) {
      const char* const text = i + 1 < argc ? argv[++i] : "";
      const auto [end, failed] = std::from_chars(text, text + std::strlen(text), into);
      if (failed != std::errc{} || *end != '\0') throw std::runtime_error(name + " needs a number");
    };
    if (name == "--rounds")
      number(out.rounds);
    else if (name == "--seed")
      number(out.seed);
    else if (name == "--mib")
      number(out.mib);
    else if (name == "--readers")
      number(out.readers);
    else if (name == "--retention")
      out.retention = true;
    else if (name == "--events")
      out.events = true;
    else if (name == "--only-source")
      out.only_source = true;
    else if (name == "--smoke")
      out.rounds = 10;
    else if (name == "--transport" && i + 1 < argc)
      out.transport = argv[++i];
    else
      throw std::runtime_error("unknown option " + name);
  }
  return out;
}

template <typename Hub>
bool run(const settings& given) {
  if (given.only_source) {
    chaos::measure_only_source<Hub>(given.rounds, given.mib << 20);
    return true;
  }
  std::printf("chaos over %s: %llu rounds from seed %llu, shards of %llu MiB, %llu rollouts%s\n",
              given.transport.c_str(), static_cast<unsigned long long>(given.rounds),
              static_cast<unsigned long long>(given.seed), static_cast<unsigned long long>(given.mib),
              static_cast<unsigned long long>(given.readers), given.retention ? ", with retention" : "");
  const chaos::setting how{given.mib << 20, given.readers, given.retention};
  std::vector<chaos::round_result> rounds;
  for (std::uint64_t i = 0; i < given.rounds; ++i) {
    rounds.push_back(chaos::round<Hub>{given.seed + i, how}.run());
    chaos::print_round(rounds.back(), given.events);
    rounds.back().events.clear();
  }
  return chaos::print_tables(rounds);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings given = parse(argc, argv);
    if (given.transport == "tcp") return run<tensorhub::hub<tensorhub::transports::tcp>>(given) ? 0 : 1;
    if (given.transport == "same_host")
      return run<tensorhub::hub<tensorhub::transports::same_host>>(given) ? 0 : 1;
    throw std::runtime_error("--transport is tcp or same_host");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "chaos: %s\n", e.what());
    return 2;
  }
}
