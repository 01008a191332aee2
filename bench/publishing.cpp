// How long a publish takes: digests of everything, or of one tensor of 16.
//
// Not kept: to show chunks as they are digested, so that readers begin during the publish. It was measured,
// and gained nothing.

#include <cstddef>
#include <memory>
#include <string>
#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <vector>

#include "harness.hpp"
#include "support/child_process.hpp"

namespace {

template <typename Integrity>
using hub_of = tensorhub::hub<tensorhub::transports::tcp, Integrity>;

constexpr std::size_t tensors = 16;

/// The tensors, which both trainers publish, one after the other.
struct model {
  tensorhub::host_memory::allocation memory;
  std::size_t tensor_bytes;

  explicit model(std::size_t bytes) : memory{bytes}, tensor_bytes{bytes / tensors} {
    for (std::size_t i = 0; i < tensors; ++i) change(i);
  }
  [[nodiscard]] std::byte* tensor(std::size_t i) const { return memory.data() + i * tensor_bytes; }
  void change(std::size_t i) const {
    for (std::size_t at = 0; at < tensor_bytes; at += 64)
      tensor(i)[at] = static_cast<std::byte>(std::to_integer<int>(tensor(i)[at]) + 1);
  }
};

template <typename Integrity>
class trainer {
 public:
  trainer(const std::string& server, const model& weights) : weights_{&weights} {
    tensorhub::worker_options options;
    options.server = server;
    options.model = std::string{Integrity::name};
    options.replica = "trainer";
    worker_ = std::make_unique<typename hub_of<Integrity>::publisher>(options);
    for (std::size_t i = 0; i < tensors; ++i)
      worker_->add(name(i), weights.tensor(i), {weights.tensor_bytes}, tensorhub::dtype::u8);
    worker_->join();
  }
  /// Seconds of one publish after all tensors have changed, or after one has.
  [[nodiscard]] double all_changed() {
    for (std::size_t i = 0; i < tensors; ++i) weights_->change(i);
    return taken([this] { worker_->publish(++version_); });
  }
  [[nodiscard]] double one_changed() {
    const std::size_t which = version_ % tensors;
    weights_->change(which);
    return taken([&] { worker_->publish(++version_, tensorhub::changed({name(which)})); });
  }

 private:
  [[nodiscard]] static std::string name(std::size_t i) { return "tensor " + std::to_string(i); }

  template <typename Publish>
  [[nodiscard]] double taken(Publish&& publish) {
    const double started = bench::now_seconds();
    publish();
    const double seconds = bench::now_seconds() - started;
    worker_->unpublish();
    return seconds;
  }

  const model* weights_;
  std::unique_ptr<typename hub_of<Integrity>::publisher> worker_;
  std::uint64_t version_ = 0;
};

template <typename Integrity>
void add(bench::comparison& result, trainer<Integrity>& one, int repeats) {
  const auto median_of = [repeats](auto&& publish) {
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) seconds.push_back(publish());
    return bench::figures{{"ms", bench::median(seconds) * 1e3}};
  };
  const std::string name{Integrity::name};
  result.add(name + ", all", [&one, median_of] { return median_of([&one] { return one.all_changed(); }); });
  result.add(name + ", one of 16 changed", [&one, median_of] {
    // The other trainer has changed the tensors, too: what this one remembers of them is made anew.
    static_cast<void>(one.all_changed());
    return median_of([&one] { return one.one_changed(); });
  });
}

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const processes::child_process server_process{[](processes::channel& line) {
    hub_of<tensorhub::xxh3_128>::reference_server server;
    line.say(server.address());
    static_cast<void>(line.hear());
  }};
  const std::string server = server_process.line().hear();
  const model weights{given.smoke ? std::size_t{32} << 20 : std::size_t{1} << 30};
  trainer<tensorhub::xxh3_128> fast{server, weights};
  trainer<tensorhub::blake3_128> strong{server, weights};
  bench::comparison result{
      given, "publish of 1 GiB in 16 tensors",
      "server in a process of its own; publish() in place, after all tensors or one have "
      "changed; each turn 5 publishes, their median; 9 rounds, order rotates"};
  add(result, fast, given.smoke ? 1 : 5);
  add(result, strong, given.smoke ? 1 : 5);
  result.run(given.smoke ? 1 : 9);
  result.print({"ms"});
  result.write_json(given.json_path);
}
