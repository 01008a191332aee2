// What update() costs on top of the bare transport: request, lease, control block, digests, completion.

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>
#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "harness.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::incarnation;
using transport = tensorhub::transports::tcp;
using checked_hub = tensorhub::hub<transport>;
using proven_hub = tensorhub::hub<transport, tensorhub::blake3_128>;
using unchecked_hub = tensorhub::hub<transport, tensorhub::nearest_source, tensorhub::group_consistent,
                                     tensorhub::no_integrity>;

constexpr incarnation source_id{31};
constexpr incarnation reader_id{32};
constexpr std::size_t small_tensors = 2000;
constexpr std::uint64_t small_bytes = 8192;
constexpr std::uint64_t large_bytes = 64u << 20;  // of one large tensor
constexpr std::size_t lanes = 2;

/// A shard's memory: `bytes` in large tensors, and the small ones. Every word changes with the version.
struct shard {
  explicit shard(std::uint64_t bytes) : large{bytes}, small(small_tensors * small_bytes) { clear(); }

  void clear() {
    std::memset(large.data(), 0xee, large.range().bytes);
    std::memset(small.data(), 0xee, small.size());
  }
  void fill(std::uint64_t version) {
    const auto fill_part = [&](std::byte* at, std::uint64_t bytes, std::uint64_t place) {
      auto* const words = reinterpret_cast<std::uint64_t*>(at);
      for (std::uint64_t i = 0; i < bytes / 8; ++i) words[i] = word(version, place + i);
    };
    fill_part(large.data(), large.range().bytes, 0);
    fill_part(small.data(), small.size(), 1u << 30);
  }
  [[nodiscard]] bool holds(std::uint64_t version, bool with_small) const {
    const auto is_whole = [&](const std::byte* at, std::uint64_t bytes, std::uint64_t place) {
      const auto* const words = reinterpret_cast<const std::uint64_t*>(at);
      std::uint64_t wrong = 0;
      for (std::uint64_t i = 0; i < bytes / 8; ++i) wrong |= words[i] ^ word(version, place + i);
      return wrong == 0;
    };
    return is_whole(large.data(), large.range().bytes, 0) &&
           (!with_small || is_whole(small.data(), small.size(), 1u << 30));
  }
  [[nodiscard]] static std::uint64_t word(std::uint64_t version, std::uint64_t place) {
    return (version << 40) + place * 0x9e3779b97f4a7c15u;
  }
  template <typename Worker>
  void add_to(Worker& worker, bool with_small) {
    const std::uint64_t bytes = large.range().bytes;
    for (std::uint64_t at = 0; at < bytes; at += large_bytes) {
      worker.add("large." + std::to_string(at), large.data() + at, {std::min(large_bytes, bytes - at)},
                 tensorhub::dtype::u8);
    }
    for (std::size_t i = 0; with_small && i < small_tensors; ++i)
      worker.add("small." + std::to_string(i), small.data() + i * small_bytes, {small_bytes},
                 tensorhub::dtype::u8);
  }
  tensorhub::host_memory::allocation large;
  std::vector<std::byte> small;
};

tensorhub::worker_options who(const std::string& server, const std::string& model,
                              const std::string& replica) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = model;
  options.replica = replica;
  options.lanes = lanes;
  return options;
}

/// One publisher per model; each "next" makes a new version of all of them.
void serve(processes::channel& line, std::uint64_t bytes) {
  shard memory{bytes};
  checked_hub::reference_server server;
  checked_hub::publisher checked{who(server.address(), "checked", "trainer")};
  checked_hub::publisher many{who(server.address(), "many", "trainer")};
  proven_hub::publisher proven{who(server.address(), "proven", "trainer")};
  unchecked_hub::publisher unchecked{who(server.address(), "unchecked", "trainer")};
  memory.add_to(checked, false);
  memory.add_to(many, true);
  memory.add_to(proven, false);
  memory.add_to(unchecked, false);
  transport through{{}, source_id};
  const auto range = memory.large.range();
  auto regions = through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << server.address() << " " << through.address().text << " "
        << bench::to_text(through.describe(regions.front()));
  line.say(facts.str());
  for (std::uint64_t version = 1;; ++version) {
    for (std::string word = line.hear(); word != "next"; word = line.hear())
      line.say(std::to_string(bench::cpu_seconds()));
    checked.unpublish();
    many.unpublish();
    proven.unpublish();
    unchecked.unpublish();
    memory.fill(version);
    std::ostringstream said;
    said << version << " " << checked.publish(version).seconds << " " << many.publish(version).seconds << " "
         << proven.publish(version).seconds << " " << unchecked.publish(version).seconds;
    line.say(said.str());
  }
}

/// The same bytes by the transport alone, with connections made anew as an update makes them.
void read_bare(transport& through, const tensorhub::transport_address& source,
               const transport::memory_region& into, const tensorhub::remote_region& from,
               std::uint64_t bytes, std::uint64_t chunk_bytes) {
  const std::uint64_t part = bytes / lanes;
  const auto read_part = [&](std::uint64_t begin) {
    auto queue = through.make_queue(4);
    auto endpoint = through.connect(queue, source, source_id, std::chrono::seconds{5});
    std::uint64_t asked = 0;
    std::uint64_t done = 0;
    std::array<completion, 16> completions;
    while (done < part) {
      while (asked < part && queue.outstanding() < 4) {
        const std::uint64_t length = std::min(chunk_bytes, part - asked);
        static_cast<void>(
            queue.post_read(endpoint, into, begin + asked, {&from, begin + asked, length}, length));
        asked += length;
      }
      const std::size_t count = queue.poll(completions);
      for (std::size_t i = 0; i < count; ++i) {
        if (completions[i].status != completion_status::ok) throw std::runtime_error("a read failed");
        done += completions[i].id;
      }
      if (count == 0) queue.wait(std::chrono::seconds{1});
    }
  };
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < lanes; ++i) helpers.emplace_back([&, i] { read_part(i * part); });
  read_part(0);
}

constexpr const char* how_it_is_measured =
    " MiB in 64 MiB tensors, from another process's memfd over loopback, 2 lanes, window 4; the bare "
    "transport "
    "connects anew each time, as an update does, and reads chunks of 1 MiB or 8 MiB; publishing is not "
    "timed; "
    "every version has other bytes, the target is cleared before each turn, and all of it is compared after "
    "it; "
    "1 warming round, then 9, order rotates; medians; with small tensors: 2000 of 8 KiB besides";

void judge(bench::comparison& rivals, const std::vector<std::string>& bare) {
  rivals.goal("update() with digests / bare transport",
              rivals.ratio("update(), xxh3-128 digests", bare, "GB/s", true), 0.85);
  rivals.goal("update() with BLAKE3 digests / with xxh3-128 digests",
              rivals.ratio("update(), BLAKE3 digests", {"update(), xxh3-128 digests"}, "GB/s", true), 0.5);
  rivals.goal("update() without digests / bare transport",
              rivals.ratio("update(), no digests", bare, "GB/s", true), 0.95);
  rivals.goal("update() with 2000 small tensors / bare transport",
              rivals.ratio("update(), digests, 2000 small tensors more", bare, "GB/s", true), 0.80);
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 64u << 20 : 1u << 30;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  std::istringstream facts{source.line().hear()};
  std::string server;
  tensorhub::transport_address address;
  facts >> server >> address.text;
  const auto region = bench::from_text(facts);

  shard memory{bytes};
  checked_hub::subscriber checked{who(server, "checked", "rollout")};
  checked_hub::subscriber many{who(server, "many", "rollout")};
  proven_hub::subscriber proven{who(server, "proven", "rollout")};
  unchecked_hub::subscriber unchecked{who(server, "unchecked", "rollout")};
  memory.add_to(checked, false);
  memory.add_to(many, true);
  memory.add_to(proven, false);
  memory.add_to(unchecked, false);
  transport through{{}, reader_id};
  const auto range = memory.large.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);

  bench::comparison rivals{given, "update() of a shard against the bare transport",
                           std::to_string(bytes >> 20) + how_it_is_measured};
  std::uint64_t version = 0;
  const auto timed = [&](std::uint64_t moved, const std::function<void()>& work) {
    return [&source, &memory, &version, bytes, moved, work] {
      memory.clear();
      const double source_cpu = bench::cpu_of(source);
      const double own_cpu = bench::cpu_seconds();
      const double started = bench::now_seconds();
      work();
      const double seconds = bench::now_seconds() - started;
      const double gigabytes = static_cast<double>(moved) * 1e-9;
      const bench::figures seen{{"s", seconds},
                                {"GB/s", gigabytes / seconds},
                                {"reader cpu s/GB", (bench::cpu_seconds() - own_cpu) / gigabytes},
                                {"source cpu s/GB", (bench::cpu_of(source) - source_cpu) / gigabytes}};
      if (!memory.holds(version, moved > bytes))
        throw std::runtime_error("what has arrived is not version " + std::to_string(version));
      return seen;
    };
  };
  const std::vector<std::string> bare{"bare transport, 1 MiB chunks", "bare transport, 8 MiB chunks"};
  rivals.add(bare[0],
             timed(bytes, [&] { read_bare(through, address, into.front(), region, bytes, 1u << 20); }));
  rivals.add(bare[1],
             timed(bytes, [&] { read_bare(through, address, into.front(), region, bytes, 8u << 20); }));
  const auto update = [&](auto& subscriber) {
    return [&subscriber, &version] {
      if (subscriber.update(tensorhub::exactly(version)).kept) throw std::runtime_error("nothing was read");
    };
  };
  const std::uint64_t with_small = bytes + small_tensors * small_bytes;
  rivals.add("update(), xxh3-128 digests", timed(bytes, update(checked)));
  rivals.add("update(), BLAKE3 digests", timed(bytes, update(proven)));
  rivals.add("update(), no digests", timed(bytes, update(unchecked)));
  rivals.add("update(), digests, 2000 small tensors more", timed(with_small, update(many)));
  rivals.before_round([&] {
    std::istringstream said{source.ask("next")};
    said >> version;
  });
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"s", "GB/s", "reader cpu s/GB", "source cpu s/GB"});
  judge(rivals, bare);
  rivals.write_json(given.json_path);
}
