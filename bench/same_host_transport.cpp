// The same-host transport against what it is made of: memcpy, and a bare process_vm_readv loop.

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <sstream>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <thread>

#include "harness.hpp"
#include "read_all.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::incarnation;
using transport = tensorhub::transports::same_host;

constexpr incarnation source_id{11};
constexpr incarnation reader_id{12};

void fill(std::byte* data, std::uint64_t bytes) {
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(data + i, &i, 8);
}

void serve(processes::channel& line, std::uint64_t bytes) {
  const tensorhub::host_memory::allocation memory{bytes};
  std::vector<std::byte> plain_memory(bytes);
  fill(memory.data(), bytes);
  fill(plain_memory.data(), bytes);
  transport through{{}, source_id};
  const std::array ranges{memory.range(), tensorhub::memory_range{plain_memory.data(), bytes}};
  const auto regions = through.register_memory(ranges, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << ::getpid() << " " << reinterpret_cast<std::uintptr_t>(plain_memory.data()) << " "
        << through.address().text << " " << bench::to_text(through.describe(regions[0])) << " "
        << bench::to_text(through.describe(regions[1]));
  line.say(facts.str());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(bench::cpu_seconds()));
  }
}

/// A reading process's part: its own transport object, so that the number of threads can be chosen.
class reader {
 public:
  reader(std::size_t threads, const tensorhub::transport_address& source, std::byte* target,
         std::uint64_t bytes)
      : through_{{.copy_threads = threads}, reader_id},
        range_{target, bytes},
        into_{through_.register_memory(std::span{&range_, 1}, tensorhub::region_access::local_write)},
        queue_{through_.make_queue(16)},
        endpoint_{through_.connect(queue_, source, source_id, std::chrono::seconds{5})} {}

  void read(const tensorhub::remote_region& from, std::uint64_t chunk_bytes) {
    bench::read_all<transport>(queue_, endpoint_, into_.front(), from, chunk_bytes, 4);
  }

 private:
  transport through_;
  tensorhub::memory_range range_;
  std::vector<transport::memory_region> into_;
  transport::queue queue_;
  transport::endpoint endpoint_;
};

/// `work(begin, bytes)` by each of the threads, for an equal part.
void in_parts(std::size_t threads, std::uint64_t bytes,
              const std::function<void(std::uint64_t, std::uint64_t)>& work) {
  const std::uint64_t part = bytes / threads;
  std::vector<std::jthread> helpers;
  for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back([&, i] { work(i * part, part); });
  work(0, part);
}

void bare_attach(pid_t process, std::uint64_t address, std::byte* target, std::uint64_t bytes,
                 std::uint64_t call_bytes) {
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t length = std::min(call_bytes, bytes - done);
    const iovec into{target + done, length};
    const iovec from{reinterpret_cast<void*>(address + done), length};
    if (::process_vm_readv(process, &into, 1, &from, 1, 0) != static_cast<ssize_t>(length))
      throw std::runtime_error(std::string{"process_vm_readv: "} + std::strerror(errno));
    done += length;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 16u << 20 : 1u << 30;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  std::istringstream facts{source.line().hear()};
  pid_t process = 0;
  std::uint64_t plain_address = 0;
  tensorhub::transport_address address;
  facts >> process >> plain_address >> address.text;
  const auto file_region = bench::from_text(facts);
  const auto plain_region = bench::from_text(facts);

  std::vector<std::byte> target(bytes);
  std::vector<std::byte> own(bytes);
  fill(own.data(), bytes);

  bench::comparison rivals{
      given, "same-host transport, one reader",
      "each turn moves " + std::to_string(bytes >> 20) +
          " MiB into touched memory of another process than the source; ours in reads of 8 "
          "MiB (or one read, or 1 MiB), 4 asked for ahead, connection kept; memcpy from the "
          "process's own memory, one call per thread; process_vm_readv in calls of 1 and 4 "
          "MiB; threads of the bare loops are started in the turn; 1 warming round, then 9, "
          "order rotates; medians; CPU seconds per GB of the reader by getrusage"};
  const auto turn = [&](const std::function<void()>& work) {
    return [&, work] { return bench::timed(source, bytes, work); };
  };
  const auto threads_text = [](std::size_t threads) {
    return std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  };
  std::array<std::vector<std::string>, 3> bare_loops;
  for (const std::size_t threads : {1u, 2u}) {
    rivals.add("memcpy, " + threads_text(threads), turn([&, threads] {
                 in_parts(threads, bytes, [&](std::uint64_t begin, std::uint64_t part) {
                   std::memcpy(target.data() + begin, own.data() + begin, part);
                 });
               }));
    for (const std::uint64_t call_mib : {1u, 4u}) {
      bare_loops[threads].push_back("process_vm_readv, " + std::to_string(call_mib) + " MiB calls, " +
                                    threads_text(threads));
      rivals.add(bare_loops[threads].back(), turn([&, threads, call_mib] {
                   in_parts(threads, bytes, [&](std::uint64_t begin, std::uint64_t part) {
                     bare_attach(process, plain_address + begin, target.data() + begin, part, call_mib << 20);
                   });
                 }));
    }
    const auto ours = std::make_shared<reader>(threads, address, target.data(), bytes);
    const auto add = [&](const std::string& what, const tensorhub::remote_region& from, std::uint64_t chunk) {
      rivals.add("tensorhub, " + what + ", " + threads_text(threads),
                 turn([&, ours, chunk] { ours->read(from, chunk); }));
    };
    add("memfd, 8 MiB reads", file_region, 8u << 20);
    add("memfd, one read", file_region, bytes);
    add("memfd, 1 MiB reads", file_region, 1u << 20);
    add("process_vm_readv, 8 MiB reads", plain_region, 8u << 20);
    add("process_vm_readv, 1 MiB reads", plain_region, 1u << 20);
  }
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"GB/s", "reader cpu s/GB", "source cpu s/GB"});

  reader last{2, address, target.data(), bytes};
  for (const auto* region : {&file_region, &plain_region}) {
    std::ranges::fill(target, std::byte{0});
    last.read(*region, 8u << 20);
    if (target != own) throw std::runtime_error("wrong bytes arrived");
  }
  const auto ratio = [&](const std::string& name, const std::vector<std::string>& to) {
    return rivals.ratio(name, to, "GB/s", true);
  };
  rivals.goal("memfd, 1 thread / memcpy, 1 thread",
              ratio("tensorhub, memfd, 8 MiB reads, 1 thread", {"memcpy, 1 thread"}), 1.0);
  rivals.goal("memfd, 2 threads / memcpy, 1 thread",
              ratio("tensorhub, memfd, 8 MiB reads, 2 threads", {"memcpy, 1 thread"}), 1.6);
  rivals.goal("process_vm_readv, 1 thread / best bare loop, 1 thread",
              ratio("tensorhub, process_vm_readv, 8 MiB reads, 1 thread", bare_loops[1]), 0.95);
  rivals.goal("process_vm_readv, 2 threads / best bare loop, 2 threads",
              ratio("tensorhub, process_vm_readv, 8 MiB reads, 2 threads", bare_loops[2]), 0.95);
  rivals.write_json(given.json_path);
}
