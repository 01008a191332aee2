// The TCP transport against the best bare loops and iperf3: one reader, from the source's memory into the
// reader's final buffer.

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "bare_tcp.hpp"
#include "harness.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::incarnation;
using transport = tensorhub::transports::tcp;

constexpr incarnation source_id{11};
constexpr incarnation reader_id{12};

void serve(processes::channel& line, std::uint64_t bytes) {
  const tensorhub::host_memory::allocation memory{bytes};
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) std::memcpy(memory.data() + i, &i, 8);
  const int descriptor = memory.range().backing_fd;
  bench::bare_source by_send{memory.data(), descriptor, false};
  bench::bare_source by_sendfile{memory.data(), descriptor, true};
  transport through{{.send_from_file = tensorhub::transports::file_sending::always}, source_id};
  const auto range = memory.range();
  auto regions = through.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  auto plain = range;
  plain.backing_fd = -1;
  auto plain_regions = through.register_memory(std::span{&plain, 1}, tensorhub::region_access::remote_read);
  std::ostringstream facts;
  facts << by_send.port() << " " << by_sendfile.port() << " " << through.address().text << " "
        << bench::to_text(through.describe(regions.front())) << " "
        << bench::to_text(through.describe(plain_regions.front()));
  line.say(facts.str());
  for (;;) {
    static_cast<void>(line.hear());
    line.say(std::to_string(bench::cpu_seconds()));
  }
}

/// One thread with a queue of its own.
struct lane {
  transport::queue queue;
  transport::endpoint endpoint;
};

class transport_reader {
 public:
  transport_reader(transport& through, const tensorhub::transport_address& source, std::size_t lanes) {
    for (std::size_t i = 0; i < lanes; ++i) {
      auto queue = through.make_queue(16);
      auto endpoint = through.connect(queue, source, source_id, std::chrono::seconds{5});
      lanes_.push_back(std::make_unique<lane>(lane{std::move(queue), std::move(endpoint)}));
    }
  }
  void read(const transport::memory_region& into, const tensorhub::remote_region& from, std::uint64_t bytes,
            std::uint64_t chunk_bytes, std::size_t depth) {
    const std::uint64_t part = bytes / lanes_.size();
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < lanes_.size(); ++i)
      helpers.emplace_back([&, i] { read_part(*lanes_[i], into, from, i * part, part, chunk_bytes, depth); });
    read_part(*lanes_[0], into, from, 0, part, chunk_bytes, depth);
  }

 private:
  static void read_part(lane& own, const transport::memory_region& into, const tensorhub::remote_region& from,
                        std::uint64_t begin, std::uint64_t bytes, std::uint64_t chunk_bytes,
                        std::size_t depth) {
    std::uint64_t asked = 0;
    std::uint64_t done = 0;
    std::array<completion, 16> completions;
    while (done < bytes) {
      while (asked < bytes && own.queue.outstanding() < depth) {
        const std::uint64_t length = std::min(chunk_bytes, bytes - asked);
        static_cast<void>(
            own.queue.post_read(own.endpoint, into, begin + asked, {&from, begin + asked, length}, length));
        asked += length;
      }
      const std::size_t count = own.queue.poll(completions);
      for (std::size_t i = 0; i < count; ++i) {
        if (completions[i].status != completion_status::ok) throw std::runtime_error("a read failed");
        done += completions[i].id;
      }
      if (count == 0) own.queue.wait(std::chrono::seconds{1});
    }
  }
  std::vector<std::unique_ptr<lane>> lanes_;
};

/// One stream for as long as the bytes take; empty if iperf3 is not there.
bench::figures run_iperf3(std::uint64_t bytes) {
  const std::string command =
      "iperf3 -c 127.0.0.1 -p 45201 -C cubic -n " + std::to_string(bytes) + " -J 2>/dev/null";
  std::unique_ptr<FILE, int (*)(FILE*)> pipe{::popen(command.c_str(), "r"), &::pclose};
  std::string text(1u << 20, '\0');
  text.resize(pipe ? ::fread(text.data(), 1, text.size(), pipe.get()) : 0);
  const auto section = text.find("\"sum_received\"");
  const auto field = section == std::string::npos ? section : text.find("\"bits_per_second\":", section);
  if (field == std::string::npos) return {};
  const double bits = std::strtod(text.c_str() + field + 18, nullptr);
  return {{"GB/s", bits / 8e9}};
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const std::uint64_t bytes = given.smoke ? 16u << 20 : 1u << 30;
  constexpr std::uint64_t chunk_bytes = 8u << 20;
  constexpr std::size_t depth = 4;
  const processes::child_process source{[&](processes::channel& line) { serve(line, bytes); }};
  const processes::child_process iperf{[](processes::channel& line) {
    line.say("there");
    ::execlp("iperf3", "iperf3", "-s", "-p", "45201", "-B", "127.0.0.1", "--logfile", "/dev/null", nullptr);
  }};
  static_cast<void>(iperf.line().hear());
  std::istringstream facts{source.line().hear()};
  std::uint16_t send_port = 0;
  std::uint16_t sendfile_port = 0;
  tensorhub::transport_address address;
  facts >> send_port >> sendfile_port >> address.text;
  const auto file_region = bench::from_text(facts);
  const auto plain_region = bench::from_text(facts);

  const tensorhub::host_memory::allocation target{bytes};
  std::memset(target.data(), 0, bytes);
  transport through{{}, reader_id};
  const auto range = target.range();
  const auto into = through.register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);

  bench::comparison rivals{given, "TCP transport, one reader",
                           "each turn moves " + std::to_string(bytes >> 20) +
                               " MiB in 8 MiB chunks, 4 asked for ahead, from another process's memfd into "
                               "touched memory over loopback "
                               "(cubic); connections stay open; 1 warming round, then 9, order rotates; "
                               "medians; CPU seconds per GB by "
                               "getrusage of each process"};
  const auto turn = [&](const std::function<void()>& work) {
    return [&, work] {
      const double source_cpu = bench::cpu_of(source);
      const double own_cpu = bench::cpu_seconds();
      const double started = bench::now_seconds();
      work();
      const double seconds = bench::now_seconds() - started;
      const double gigabytes = static_cast<double>(bytes) * 1e-9;
      return bench::figures{{"GB/s", gigabytes / seconds},
                            {"source cpu s/GB", (bench::cpu_of(source) - source_cpu) / gigabytes},
                            {"reader cpu s/GB", (bench::cpu_seconds() - own_cpu) / gigabytes}};
    };
  };
  std::vector<std::string> bare;
  for (const std::size_t streams : {1u, 2u}) {
    for (const bool by_file : {false, true}) {
      auto reader = std::make_shared<bench::bare_reader>(by_file ? sendfile_port : send_port, streams);
      bare.push_back("bare " + std::string{by_file ? "sendfile" : "send"} + "/recv, " +
                     std::to_string(streams) + " stream");
      rivals.add(bare.back(), turn([&, reader] { reader->read(target.data(), bytes, chunk_bytes, depth); }));
    }
  }
  for (const std::size_t lanes : {1u, 2u}) {
    for (const bool by_file : {false, true}) {
      auto reader = std::make_shared<transport_reader>(through, address, lanes);
      rivals.add("tensorhub tcp, " + std::string{by_file ? "by sendfile" : "by send"} + ", " +
                     std::to_string(lanes) + " lane",
                 turn([&, reader, by_file] {
                   reader->read(into.front(), by_file ? file_region : plain_region, bytes, chunk_bytes,
                                depth);
                 }));
    }
  }
  const bool has_iperf = !run_iperf3(1u << 20).empty();
  if (has_iperf)
    rivals.add("iperf3, 1 stream", [&] { return run_iperf3(bytes); });
  else
    std::printf("iperf3 does not run here: not compared\n");
  rivals.run(given.smoke ? 1 : 9);
  rivals.print({"GB/s", "source cpu s/GB", "reader cpu s/GB"});

  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i + 8 <= bytes; i += 8) wrong += std::memcmp(target.data() + i, &i, 8) != 0;
  if (wrong != 0) throw std::runtime_error("wrong bytes arrived");
  rivals.goal("best of ours / best bare loop",
              std::max(rivals.ratio("tensorhub tcp, by send, 2 lane", bare, "GB/s", true),
                       rivals.ratio("tensorhub tcp, by sendfile, 1 lane", bare, "GB/s", true)),
              0.95);
  if (has_iperf)
    rivals.goal("ours with one lane / iperf3 with one stream",
                rivals.ratio("tensorhub tcp, by send, 1 lane", {"iperf3, 1 stream"}, "GB/s", true), 1.0);
  rivals.write_json(given.json_path);
}
