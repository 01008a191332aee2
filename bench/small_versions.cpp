// An update of a small version against the least that it takes: one request to the server and one bare read.

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tensorhub/server.hpp>
#include <tensorhub/server_client.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <utility>
#include <vector>

#include "harness.hpp"
#include "support/child_process.hpp"

namespace {

using hub = tensorhub::hub<tensorhub::transports::tcp>;
using tensorhub::transports::tcp;
using namespace std::chrono_literals;

/// A process that publishes the next version whenever it is told to.
void train(const processes::channel& line, const std::string& server, const std::string& model,
           std::size_t bytes) {
  std::vector<std::byte> weights(bytes, std::byte{1});
  hub::publisher trainer{{.server = server, .model = model, .replica = "trainer"}};
  trainer.add("w", weights.data(), {bytes}, tensorhub::dtype::u8);
  trainer.join();
  line.say("ready");
  for (std::uint64_t version = 1;; ++version) {
    static_cast<void>(line.hear());
    trainer.unpublish();
    bench::change_pages(weights, version);
    trainer.publish(version);
    line.say("published");
  }
}

/// A process that serves one region over tcp.
void serve_region(const processes::channel& line, std::size_t bytes) {
  std::vector<std::byte> memory(bytes, std::byte{1});
  tcp source{{}, {1}};
  const tensorhub::memory_range range{memory.data(), memory.size()};
  const auto regions = source.register_memory(std::span{&range, 1}, tensorhub::region_access::remote_read);
  line.say(source.address().text);
  line.tell(source.describe(regions.front()));
  static_cast<void>(line.hear());
}

/// One size: a trainer and a bare source in processes of their own, and their readers in this one.
class contest {
 public:
  contest(const std::string& server, std::size_t bytes)
      : bytes_{bytes},
        trainer_{[&](processes::channel& line) { train(line, server, model(), bytes); }},
        source_{[&](processes::channel& line) { serve_region(line, bytes); }},
        server_{server} {}

  /// Once all processes are there: these have threads.
  void begin() {
    static_cast<void>(trainer_.line().hear());
    weights_.resize(bytes_);
    worker_.emplace(tensorhub::worker_options{.server = server_, .model = model(), .replica = "rollout"});
    worker_->add("w", weights_.data(), {bytes_}, tensorhub::dtype::u8);
    worker_->join();
    reader_.emplace(tcp::options{}, tensorhub::incarnation{2});
    queue_.emplace(reader_->make_queue(1));
    const std::string address = source_.line().hear();
    region_ = source_.line().take<tensorhub::remote_region>();
    endpoint_.emplace(reader_->connect(*queue_, {address}, {1}, 10s));
    target_.resize(bytes_);
    const tensorhub::memory_range range{target_.data(), target_.size()};
    into_ = reader_->register_memory(std::span{&range, 1}, tensorhub::region_access::local_write);
  }
  [[nodiscard]] double update_seconds() {
    static_cast<void>(trainer_.ask("publish"));
    ++version_;
    const double started = bench::now_seconds();
    static_cast<void>(worker_->update(tensorhub::exactly(version_), 60s));
    return bench::now_seconds() - started;
  }
  [[nodiscard]] double bare_read_seconds() {
    const double started = bench::now_seconds();
    if (queue_->post_read(*endpoint_, into_.front(), 0, {&region_, 0, bytes_}, 1) !=
        tensorhub::post_result::posted)
      throw std::runtime_error("a bare read was not posted");
    tensorhub::completion done{};
    while (queue_->poll(std::span{&done, 1}) == 0) queue_->wait(10ms);
    if (done.status != tensorhub::completion_status::ok) throw std::runtime_error("a bare read has failed");
    return bench::now_seconds() - started;
  }

 private:
  [[nodiscard]] std::string model() const { return "model of " + std::to_string(bytes_); }

  std::size_t bytes_;
  processes::child_process trainer_;
  processes::child_process source_;
  std::string server_;
  std::vector<std::byte> weights_, target_;
  std::optional<hub::subscriber> worker_;
  std::optional<tcp> reader_;
  std::optional<tcp::queue> queue_;
  std::optional<tcp::endpoint> endpoint_;
  std::vector<tcp::memory_region> into_;
  tensorhub::remote_region region_{};
  std::uint64_t version_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::arguments given = bench::parse(argc, argv);
  const processes::child_process server_process{[](processes::channel& line) {
    hub::reference_server server;
    line.say(server.address());
    static_cast<void>(line.hear());
  }};
  const std::string server = server_process.line().hear();
  const std::vector<std::pair<std::string, std::size_t>> sizes = {
      {"64 KiB", 64u << 10}, {"1 MiB", 1u << 20}, {"16 MiB", 16u << 20}};
  std::vector<std::unique_ptr<contest>> contests;
  for (const auto& [name, bytes] : sizes) contests.push_back(std::make_unique<contest>(server, bytes));
  for (const auto& each : contests) each->begin();
  tensorhub::server_client asks{{.server = server}};

  bench::comparison result{given, "small versions over loopback TCP",
                           "server, trainers, bare sources and the readers in processes of their own; "
                           "update: update() of a version that "
                           "is there; floor: one list request to the server, and one read of as many bytes "
                           "over a connection that is "
                           "there; each turn 50 of either, their median; 9 rounds, order rotates"};
  const int repeats = given.smoke ? 2 : 50;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    contest& one = *contests[i];
    result.add("update, " + sizes[i].first, [&one, repeats] {
      std::vector<double> seconds;
      for (int n = 0; n < repeats; ++n) seconds.push_back(one.update_seconds());
      return bench::figures{{"us", bench::median(seconds) * 1e6}};
    });
    result.add("floor, " + sizes[i].first, [&one, &asks, repeats] {
      std::vector<double> seconds;
      for (int n = 0; n < repeats; ++n) {
        const double started = bench::now_seconds();
        static_cast<void>(asks.list("model of 65536"));
        const double request = bench::now_seconds() - started;
        seconds.push_back(request + one.bare_read_seconds());
      }
      return bench::figures{{"us", bench::median(seconds) * 1e6}};
    });
  }
  result.run(given.smoke ? 1 : 9);
  result.print({"us"});
  for (const auto& [name, bytes] : sizes)
    result.goal("1.5 x floor / update, " + name,
                1.5 * result.figure("floor, " + name, "us") / result.figure("update, " + name, "us"), 1.0);
  result.write_json(given.json_path);
}
