// What first_of costs: the same reads through a transport alone and through a composition that chose it. The
// transport alone takes part twice, which shows how much of a difference is noise.

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transfer/first_of.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>

#include "harness.hpp"
#include "region_text.hpp"
#include "support/child_process.hpp"

namespace {

using namespace tensorhub;
using transports::same_host;
using transports::tcp;
using composition = first_of<same_host, tcp>;

constexpr incarnation source_id{11};
constexpr std::uint64_t region_bytes = 64u << 20;

/// A registered region of the source's process, as its peers see it.
template <transport T>
struct exported {
  T through;
  std::vector<typename T::memory_region> regions;
  exported(const memory_range& range, const typename T::options& how) : through{how, source_id} {
    regions = through.register_memory(std::span{&range, 1}, region_access::remote_read);
  }
  void tell(std::ostream& out) {
    const std::string address = through.address().text;
    out << address.size() << " " << address << bench::to_text(through.describe(regions.front())) << " ";
  }
};

composition::options only_tcp() {
  composition::options how;
  how.enabled[0] = false;
  return how;
}

void serve(processes::channel& line) {
  const host_memory::allocation memory{region_bytes};
  std::memset(memory.data(), 1, region_bytes);
  exported<tcp> alone{memory.range(), {}};
  exported<same_host> near{memory.range(), {}};
  exported<composition> composed_far{memory.range(), only_tcp()};
  exported<composition> composed_near{memory.range(), {}};
  std::ostringstream facts;
  alone.tell(facts);
  composed_far.tell(facts);
  near.tell(facts);
  composed_near.tell(facts);
  line.say(facts.str());
  for (;;) static_cast<void>(line.hear());
}

/// Reads `count` times `bytes` with `depth` outstanding; seconds.
template <transport T>
class reader {
 public:
  reader(std::istream& facts, const host_memory::allocation& target, std::string_view expected = {})
      : through_{{}, incarnation{12}}, queue_{through_.make_queue(16)} {
    std::size_t length = 0;
    facts >> length;
    facts.get();
    transport_address address{std::string(length, ' ')};
    facts.read(address.text.data(), static_cast<std::streamsize>(length));
    from_ = bench::from_text(facts);
    const auto range = target.range();
    into_ = through_.register_memory(std::span{&range, 1}, region_access::local_write);
    endpoint_.emplace(through_.connect(queue_, address, source_id, std::chrono::seconds{5}));
    if constexpr (requires { endpoint_->through(); }) {
      if (endpoint_->through() != expected) throw std::runtime_error("another member: " + endpoint_->why());
    }
  }
  double read(std::uint64_t bytes, std::size_t count, std::size_t depth) {
    const double started = bench::now_seconds();
    std::size_t posted = 0, done = 0;
    std::array<completion, 16> completions;
    while (done < count) {
      while (posted < count && queue_.outstanding() < depth) {
        const std::uint64_t offset = posted * bytes % region_bytes;
        static_cast<void>(
            queue_.post_read(*endpoint_, into_.front(), offset, {&from_, offset, bytes}, posted));
        ++posted;
      }
      const std::size_t came = queue_.poll(completions);
      for (std::size_t i = 0; i < came; ++i)
        if (completions[i].status != completion_status::ok) throw std::runtime_error("a read failed");
      done += came;
      if (came == 0) queue_.wait(std::chrono::seconds{1});
    }
    return bench::now_seconds() - started;
  }

 private:
  T through_;
  typename T::queue queue_;
  remote_region from_;
  std::vector<typename T::memory_region> into_;
  std::optional<typename T::endpoint> endpoint_;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const processes::child_process source{serve};
  std::istringstream facts{source.line().hear()};
  const host_memory::allocation target{region_bytes};
  std::memset(target.data(), 0, region_bytes);
  reader<tcp> far_alone{facts, target};
  reader<composition> far_composed{facts, target, "tcp"};
  reader<same_host> near_alone{facts, target};
  reader<composition> near_composed{facts, target, "same_host"};

  bench::comparison rivals{
      given, "first_of<same_host, tcp> against the member that it chose",
      "each turn reads 4 KiB pieces (depth 16) or 1 MiB pieces (depth 4) from another process into touched "
      "memory, the same for all; 1 warming round, then 15, order rotates; medians; each member alone takes "
      "part twice: the ratio of the two is noise"};
  const std::size_t small_reads = given.smoke ? 100 : 20'000, large_reads = given.smoke ? 10 : 500;
  const auto add = [&](const std::string& name, auto& through) {
    rivals.add(name, [&through, small_reads, large_reads] {
      const double small_seconds = through.read(4096, small_reads, 16);
      const double large_seconds = through.read(1u << 20, large_reads, 4);
      return bench::figures{{"4 KiB us", small_seconds / static_cast<double>(small_reads) * 1e6},
                            {"1 MiB us", large_seconds / static_cast<double>(large_reads) * 1e6}};
    });
  };
  add("tcp", far_alone);
  add("first_of, through tcp", far_composed);
  add("tcp, once more", far_alone);
  add("same_host", near_alone);
  add("first_of, through same_host", near_composed);
  add("same_host, once more", near_alone);
  rivals.run(given.smoke ? 1 : 15);
  rivals.print({"4 KiB us", "1 MiB us"});
  if (!given.smoke) {
    for (const std::string member : {"tcp", "same_host"}) {
      for (const std::string size : {"4 KiB us", "1 MiB us"}) {
        std::printf("noise: %s against itself, %s: %.3f\n", member.c_str(), size.c_str(),
                    rivals.ratio(member + ", once more", {member}, size, false).middle);
        rivals.goal("first_of through " + member + " / " + member + ", " + size,
                    rivals.ratio("first_of, through " + member, {member}, size, false), 0.97);
      }
    }
  }
  rivals.write_json(given.json_path);
}
