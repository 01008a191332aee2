// Device memory between two processes: same_host (CUDA IPC) against a bare cuMemcpyAsync, tcp from device to
// device against tcp from host to host.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <tensorhub/memory/cuda.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

#include "cuda_timer.hpp"
#include "harness.hpp"
#include "read_all.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::incarnation;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

constexpr incarnation source_id{11};
constexpr incarnation reader_id{12};
constexpr std::uint64_t chunk_bytes = 1u << 20;

std::vector<std::byte> numbers(std::uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(out.data() + i, &i, 8);
  return out;
}

/// The source's process. It asks for a device itself: CUDA is not used before a fork.
void serve(processes::channel& line, std::uint64_t bytes) {
  if (!bench::no_gpu().empty()) return;
  tensorhub::cuda_memory space;
  const auto device = space.allocate(bytes);
  const tensorhub::host_memory::allocation host{bytes};
  const auto content = numbers(bytes);
  std::memcpy(host.data(), content.data(), bytes);
  space.copy(device.data(), content.data(), bytes);
  same_host through_same_host{{}, source_id};
  tcp through_tcp{{}, source_id};
  const std::array ranges{device.range(), host.range()};
  const auto near = through_same_host.register_memory(ranges, tensorhub::region_access::remote_read);
  const auto far = through_tcp.register_memory(ranges, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << through_same_host.address().text << " " << bench::to_text(through_same_host.describe(near[0]))
        << " " << through_tcp.address().text << " " << bench::to_text(through_tcp.describe(far[0])) << " "
        << bench::to_text(through_tcp.describe(far[1]));
  line.say(facts.str());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(bench::cpu_seconds()));
  }
}

/// Reads a whole region into `target`, in chunks, some asked for ahead.
template <typename Transport>
class reader {
 public:
  reader(const std::string& address, const tensorhub::remote_region& from,
         const tensorhub::memory_range& target, std::size_t depth)
      : through_{{}, reader_id},
        range_{target},
        from_{from},
        depth_{depth},
        into_{through_.register_memory(std::span{&range_, 1}, tensorhub::region_access::local_write)},
        queue_{through_.make_queue(depth)},
        endpoint_{through_.connect(queue_, {address, {}}, source_id, std::chrono::seconds{5})} {}

  void read() { bench::read_all<Transport>(queue_, endpoint_, into_.front(), from_, chunk_bytes, depth_); }

 private:
  Transport through_;
  tensorhub::memory_range range_;
  tensorhub::remote_region from_;
  std::size_t depth_;
  std::vector<typename Transport::memory_region> into_;
  typename Transport::queue queue_;
  typename Transport::endpoint endpoint_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 16u << 20 : 1u << 30;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  if (const std::string why = bench::no_gpu(); !why.empty()) {
    std::printf("SKIPPED: bench cuda_transport: %s\n", why.c_str());
    return 0;
  }
  std::istringstream facts{source.line().hear()};
  std::string near_address;
  std::string far_address;
  facts >> near_address;
  const auto near_device = bench::from_text(facts);
  facts >> far_address;
  const auto far_device = bench::from_text(facts);
  const auto far_host = bench::from_text(facts);

  tensorhub::cuda_memory space;
  std::printf("%s\n", space.device().description().c_str());
  const auto own = space.allocate(bytes);
  const auto target = space.allocate(bytes);
  const tensorhub::host_memory::allocation host_target{bytes};
  std::ranges::fill(std::span{host_target.data(), bytes}, std::byte{1});
  const auto lane = space.device().open_lane();
  reader<same_host> by_ipc{near_address, near_device, target.range(), 32};
  reader<tcp> by_tcp{far_address, far_device, target.range(), 8};
  reader<tcp> by_tcp_of_hosts{far_address, far_host, host_target.range(), 8};

  bench::comparison rivals{
      given, "device memory of another process",
      "each turn moves " + std::to_string(bytes >> 20) +
          " MiB into device memory (the last: host memory, from host memory) in reads of 1 MiB, 32 "
          "(tcp: 8) asked for ahead, connection kept; cuMemcpyAsync within one process, one call; "
          "the host's time until the bytes are there; 1 warming round, then 9, order rotates; "
          "medians"};
  const auto add = [&](const std::string& name, auto work) {
    rivals.add(name, [&, work] { return bench::timed(source, bytes, work); });
  };
  const std::string bare = "cuMemcpyAsync, device to device";
  add(bare, [&] { bench::done(*lane, lane->copy(target.data(), own.data(), bytes)); });
  add("tensorhub same_host, device to device", [&] { by_ipc.read(); });
  add("tensorhub tcp, device to device", [&] { by_tcp.read(); });
  add("tensorhub tcp, host to host", [&] { by_tcp_of_hosts.read(); });
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"GB/s", "reader cpu s/GB", "source cpu s/GB"});

  const auto expected = numbers(bytes);
  std::vector<std::byte> taken(bytes);
  for (const bool near : {true, false}) {
    std::ranges::fill(taken, std::byte{0});
    space.copy(target.data(), taken.data(), bytes);
    near ? by_ipc.read() : by_tcp.read();
    space.copy(taken.data(), target.data(), bytes);
    if (taken != expected) throw std::runtime_error("wrong bytes arrived");
  }
  const auto ratio = [&](const std::string& name, const std::string& to) {
    return rivals.ratio(name, {to}, "GB/s", true);
  };
  rivals.goal("same_host, two processes / bare copy", ratio("tensorhub same_host, device to device", bare),
              0.95);
  rivals.goal("tcp, device to device / host to host",
              ratio("tensorhub tcp, device to device", "tensorhub tcp, host to host"), 0.95);
  rivals.write_json(given.json_path);
}
