#pragma once
// The hub that the system tests use, instantiated once (hub.cpp), and a worker's memory to go with it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <string>
#include <system_error>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>
#include <vector>

#include "support/calls.hpp"
#include "support/gated.hpp"

extern template tensorhub::data_plane_maker tensorhub::data_plane_maker_of<
    tensorhub::testing::gated<tensorhub::transports::tcp>, tensorhub::xxh3_128, tensorhub::host_memory>(
    tensorhub::testing::gated<tensorhub::transports::tcp>::options);

namespace system_tests {

using namespace std::chrono_literals;
using calls::code_of;
using calls::comes_true;
using calls::contains;
using tensorhub::at_least;
using tensorhub::errc;
using tensorhub::error;
using tensorhub::exactly;
using tensorhub::latest;

using hub = tensorhub::hub<tensorhub::transports::tcp>;
using unchecked_hub = tensorhub::hub<tensorhub::transports::tcp, tensorhub::no_integrity>;

/// Readers that a test can stop in the middle of a transfer.
using gated_hub = tensorhub::hub<tensorhub::testing::gated<tensorhub::transports::tcp>>;

/// Some tensors of a shard: one large in a memfd, one large in plain memory, small ones, one with no bytes.
struct weights {
  explicit weights(std::size_t large_words = 300'001)
      : mapped{large_words * sizeof(std::uint64_t)}, plain(large_words / 2 + 1), bias(17), norm(3) {}

  /// All words become a function of version, shard and place.
  void fill(std::uint64_t version, std::uint64_t shard = 0) {
    const auto word = [&](std::uint64_t place) { return value(version, shard, place); };
    for (std::size_t i = 0; i < words(); ++i) mapped_word(i) = word(i);
    for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = word(i + 1);
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = static_cast<std::uint16_t>(word(i + 2));
    for (std::size_t i = 0; i < norm.size(); ++i) norm[i] = static_cast<std::uint8_t>(word(i + 3));
  }
  [[nodiscard]] bool holds(std::uint64_t version, std::uint64_t shard = 0) const {
    const auto word = [&](std::uint64_t place) { return value(version, shard, place); };
    for (std::size_t i = 0; i < words(); ++i)
      if (mapped_word(i) != word(i)) return false;
    for (std::size_t i = 0; i < plain.size(); ++i)
      if (plain[i] != word(i + 1)) return false;
    for (std::size_t i = 0; i < bias.size(); ++i)
      if (bias[i] != static_cast<std::uint16_t>(word(i + 2))) return false;
    for (std::size_t i = 0; i < norm.size(); ++i)
      if (norm[i] != static_cast<std::uint8_t>(word(i + 3))) return false;
    return true;
  }

  template <typename Worker>
  void add_to(Worker& worker) {
    worker.add("mapped", mapped.data(), {words()}, tensorhub::dtype::u64);
    worker.add("bias", bias.data(), {bias.size()}, tensorhub::dtype::u16);
    worker.add("plain", plain.data(), {plain.size(), 1}, tensorhub::dtype::u64);
    worker.add("norm", norm.data(), {norm.size()}, tensorhub::dtype::u8);
    worker.add("nothing", nullptr, {0}, tensorhub::dtype::f32);
  }

  [[nodiscard]] friend bool are_equal(const weights& a, const weights& b) {
    return std::memcmp(a.mapped.data(), b.mapped.data(), a.words() * sizeof(std::uint64_t)) == 0 &&
           a.plain == b.plain && a.bias == b.bias && a.norm == b.norm;
  }

  [[nodiscard]] std::size_t words() const { return mapped.range().bytes / sizeof(std::uint64_t); }
  [[nodiscard]] std::uint64_t& mapped_word(std::size_t i) const {
    return reinterpret_cast<std::uint64_t*>(mapped.data())[i];
  }

  tensorhub::host_memory::allocation mapped;
  std::vector<std::uint64_t> plain;
  std::vector<std::uint16_t> bias;
  std::vector<std::uint8_t> norm;

 private:
  [[nodiscard]] static std::uint64_t value(std::uint64_t version, std::uint64_t shard, std::uint64_t place) {
    return (version * 1'000'003 + shard * 101 + place) * 0x9e3779b97f4a7c15ull;
  }
};

/// A worker that does not say where it is.
[[nodiscard]] inline tensorhub::worker_options who_here(const std::string& server, std::string replica,
                                                        tensorhub::shard_of shard = {}) {
  tensorhub::worker_options options;
  options.server = server;
  options.model = "policy";
  options.replica = std::move(replica);
  options.shard = shard;
  options.join_timeout = 10s;
  options.connect_timeout = 3s;
  return options;
}
/// One with a machine of its own, as far as the scheduler knows.
[[nodiscard]] inline tensorhub::worker_options who(const std::string& server, std::string replica,
                                                   tensorhub::shard_of shard = {}) {
  auto options = who_here(server, std::move(replica), shard);
  options.location.host = options.replica;
  return options;
}

/// A worker that publishes and updates.
struct worker_of_both_doors : tensorhub::worker {
  using transport_options = tensorhub::transports::tcp::options;
  explicit worker_of_both_doors(tensorhub::worker_options options, transport_options through = {})
      : worker{std::move(options),
               tensorhub::policies_of<tensorhub::transports::tcp, tensorhub::group_consistent,
                                      tensorhub::xxh3_128, tensorhub::host_memory>(std::move(through))} {}
};

/// A worker with its weights.
template <typename Worker, typename Memory = weights>
struct member {
  Memory memory{};
  Worker worker;
  explicit member(const tensorhub::worker_options& options, typename Worker::transport_options through = {})
      : worker{options, std::move(through)} {
    memory.add_to(worker);
  }
  member(const tensorhub::worker_options& options, std::size_t large_words,
         typename Worker::transport_options through = {})
      : memory{large_words}, worker{options, std::move(through)} {
    memory.add_to(worker);
  }
  /// The bytes of this version; `how` as at the worker.
  template <typename... How>
  auto publish(std::uint64_t version, How... how) {
    memory.fill(version);
    return worker.publish(version, how...);
  }
};
/// A subscriber that is constructed in this mode.
template <typename Subscriber, tensorhub::subscriber_mode Mode>
struct in_mode : Subscriber {
  explicit in_mode(tensorhub::worker_options options, typename Subscriber::transport_options through = {})
      : Subscriber{std::move(options), Mode, std::move(through)} {}
};
template <typename Subscriber>
using staged_of = in_mode<Subscriber, tensorhub::subscriber_mode::staged>;
template <typename Subscriber>
using double_buffered_of = in_mode<Subscriber, tensorhub::subscriber_mode::double_buffered>;

using trainer = member<hub::publisher>;
using rollout = member<hub::subscriber>;
using gated_rollout = member<gated_hub::subscriber>;

/// A process that has published version 1, says so, and goes on until it is killed, or for a minute.
[[nodiscard]] inline int publish_and_stay(const std::string& server, std::size_t large_words) {
  trainer own{who(server, "trainer-0"), large_words};
  own.publish(1);
  std::cout << "published" << std::endl;
  std::this_thread::sleep_for(60s);
  return 0;
}

/// How many descriptors of this process are memory of host_memory, or tables of shared copies.
[[nodiscard]] inline int count_memory_files() {
  int found = 0;
  for (const auto& each : std::filesystem::directory_iterator{"/proc/self/fd"}) {
    std::error_code gone;
    found +=
        std::filesystem::read_symlink(each.path(), gone).string().starts_with("/memfd:tensorhub") ? 1 : 0;
  }
  return found;
}

/// What a server of this process has said; its thread writes.
class said_lines {
 public:
  [[nodiscard]] auto writer() {
    return [this](const tensorhub::log_line& line) {
      const std::lock_guard lock{mutex_};
      text_ += line.text + "\n";
    };
  }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock{mutex_};
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace system_tests
