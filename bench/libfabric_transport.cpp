// The libfabric transport against a bare fi_read loop on the same provider (tcp, connected): one reader, from
// the source's memory into the reader's final buffer.

#include <cstring>
#include <memory>
#include <sstream>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/libfabric.hpp>

#include "bare_libfabric.hpp"
#include "harness.hpp"
#include "read_all.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::incarnation;
using transport = tensorhub::transports::libfabric;

constexpr incarnation source_id{11};
constexpr incarnation reader_id{12};

void serve(processes::channel& line, std::uint64_t bytes) {
  const tensorhub::host_memory::allocation memory{bytes};
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(memory.data() + i, &i, 8);
  const auto range = memory.range();
  const bench::bare_fabric_source bare{range};
  transport through{{}, source_id};
  const auto regions = through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << bare.address() << " " << through.address().text << " "
        << bench::to_text(through.describe(regions.front()));
  line.say(facts.str());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(bench::cpu_seconds()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 16u << 20 : 1u << 30;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  std::istringstream facts{source.line().hear()};
  std::string bare_address;
  tensorhub::transport_address address;
  facts >> bare_address >> address.text;
  const auto from = bench::from_text(facts);

  const tensorhub::host_memory::allocation target{bytes};
  std::memset(target.data(), 0, bytes);
  transport through{{}, reader_id};
  const auto range = target.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  auto queue = through.make_queue(16);
  auto endpoint = through.connect(queue, address, source_id, std::chrono::seconds{5});
  bench::bare_fabric_reader bare{bare_address};

  bench::comparison rivals{
      given, "libfabric transport, provider tcp, one reader",
      "each turn moves " + std::to_string(bytes >> 20) +
          " MiB from another process's memory into touched memory over loopback, by connected endpoints; the "
          "transport is asked for 8 MiB reads, 4 ahead, and for 1 MiB reads, 8 ahead; the bare loop keeps "
          "`depth` fi_reads in flight; connections stay open; 1 warming round, then 9, order rotates; "
          "medians; CPU seconds per GB by getrusage of each process"};
  const auto turn = [&](const std::function<void()>& work) {
    return [&, work] { return bench::timed(source, bytes, work); };
  };
  struct shape {
    std::uint64_t kib;
    std::size_t depth;
    bool sleeps;
  };
  std::vector<std::string> bare_names;
  for (const shape each : {shape{1024, 4, true}, shape{1024, 4, false}, shape{512, 8, true},
                           shape{2048, 4, true}, shape{8192, 4, true}}) {
    bare_names.push_back("bare fi_read, " + std::to_string(each.kib) + " KiB x " +
                         std::to_string(each.depth) + (each.sleeps ? ", sleeping" : ", polling"));
    rivals.add(bare_names.back(),
               turn([&, each] { bare.read(target.data(), bytes, each.kib << 10, each.depth, each.sleeps); }));
  }
  const std::string large = "tensorhub libfabric, 8 MiB x 4";
  const std::string small = "tensorhub libfabric, 1 MiB x 8";
  const auto read = [&](std::uint64_t chunk_bytes, std::size_t depth) {
    bench::read_all<transport>(queue, endpoint, into.front(), from, chunk_bytes, depth);
  };
  rivals.add(large, turn([&] { read(8u << 20, 4); }));
  rivals.add(small, turn([&] { read(1u << 20, 8); }));
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"GB/s", "source cpu s/GB", "reader cpu s/GB"});

  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) wrong += std::memcmp(target.data() + i, &i, 8) != 0;
  if (wrong != 0) throw std::runtime_error("wrong bytes arrived");
  rivals.goal("ours, 8 MiB reads / best bare loop", rivals.ratio(large, bare_names, "GB/s", true), 0.95);
  rivals.goal("ours, 1 MiB reads / best bare loop", rivals.ratio(small, bare_names, "GB/s", true), 0.95);
  rivals.write_json(given.json_path);
}
