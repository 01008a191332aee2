#pragma once
/// \file fixture.hpp
/// The processes and the reader that the rules of the transport conformance suite use. Their memory is in
/// guarded_memory.hpp.
///
/// Every wait ends at the rule's deadline, or earlier if the transport reports that no read is outstanding.
/// Where the transport does not let it end, a watchdog ends the process (watchdog.hpp). No rule passes or
/// fails by time, except that reaching the deadline is a failure.
///
/// Thread safety: a fixture belongs to the thread that runs the rule; a `reader` to the thread that uses it.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/guarded_memory.hpp"
#include "tensorhub/testing/conformance/read_ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// How the suite makes and ends processes of a transport.
template <transport T>
struct conformance_subject {
  /// Makes a new process. Required.
  std::function<std::unique_ptr<T>(incarnation)> make = [](incarnation self) {
    return std::make_unique<T>(typename T::options{}, self);
  };
  /// Kills a process. The suite has destroyed its regions before; the object itself is destroyed afterwards,
  /// so the default may be empty.
  std::function<void(T&)> kill = [](T&) {};
  /// Stops a process, which then answers nothing (SIGSTOP) until it is destroyed. Empty: the rule for silent
  /// peers does not apply. `make` should then set a short peer time-out.
  std::function<void(T&)> stall{};
  bool stalls_all = false;  ///< so do all other sources then: the network is cut
  /// Makes the memory that rules register: at a source for its peers, or as the target of reads. Empty: host
  /// memory (for sources also memory with a file, if the transport uses files). `device_bytes.hpp` has
  /// another.
  memory_maker source_memory{};
  memory_maker target_memory{};
};

struct conformance_options {
  std::chrono::milliseconds deadline{20'000};  ///< of each rule
  /// A rule that has not ended so long after its deadline hangs in the transport, and the process is aborted.
  std::chrono::milliseconds overtime{120'000};
  std::uint64_t largest_read_bytes = 4u << 20;  ///< used if the transport has no smaller limit
  std::size_t rounds = 6;                       ///< of the rules that search for races
  bool concurrent_overwrites = true;  ///< false: no rule whose failure is a data race (mutants under TSan)
};

/// The findings of one rule.
class findings {
 public:
  /// Records the sentence if the requirement does not hold; returns whether it holds.
  bool require(bool holds, const std::string& otherwise) {
    if (!holds && sentences_.size() < most) sentences_.push_back(otherwise);
    return holds;
  }
  void add(const std::vector<std::string>& sentences) {
    for (const std::string& each : sentences) require(false, each);
  }
  [[nodiscard]] bool empty() const noexcept { return sentences_.empty(); }
  [[nodiscard]] std::vector<std::string> take() { return std::move(sentences_); }

 private:
  static constexpr std::size_t most = 16;
  std::vector<std::string> sentences_;
};

/// The finding where a transport throws what is no std::exception.
inline constexpr const char* thrown_otherwise = "something was thrown that is no std::exception";

/// The environment of one rule.
template <transport T>
class conformance_fixture {
 public:
  using region = typename T::memory_region;
  static constexpr transport_capabilities capabilities = T::capabilities;

  conformance_fixture(const conformance_subject<T>& subject, const conformance_options& options)
      : subject_{subject}, options_{options} {}

  /// One process. Members are destroyed in the right order: regions before the transport.
  struct process {
    incarnation self{};
    std::unique_ptr<T> transport;
    std::vector<region> regions;

    T* operator->() const noexcept { return transport.get(); }
    T& operator*() const noexcept { return *transport; }
    /// Registers the ranges and keeps the regions; returns the index in `regions`.
    std::size_t add(const memory_range& range, region_access access = region_access::both) {
      for (region& each : transport->register_memory(std::span{&range, 1}, access))
        regions.push_back(std::move(each));
      return regions.size() - 1;
    }
    [[nodiscard]] remote_region describe(std::size_t index) const {
      return transport->describe(regions.at(index));
    }
  };

  [[nodiscard]] incarnation new_incarnation() { return {random_() | 1u}; }
  [[nodiscard]] process start() {
    const incarnation self = new_incarnation();
    return {self, subject_.make(self), {}};
  }
  /// Kills the process: its regions end first, then the object.
  void kill(process& victim) {
    victim.regions.clear();
    subject_.kill(*victim.transport);
    victim.transport.reset();
  }
  [[nodiscard]] bool can_stall() const noexcept { return static_cast<bool>(subject_.stall); }
  [[nodiscard]] bool can_stall_one() const noexcept { return can_stall() && !subject_.stalls_all; }
  void stall(process& victim) { subject_.stall(*victim.transport); }

  [[nodiscard]] const conformance_options& options() const noexcept { return options_; }
  /// The remaining time of the rule; at least one millisecond.
  [[nodiscard]] duration left() const noexcept {
    return std::max<duration>(until_ - std::chrono::steady_clock::now(), std::chrono::milliseconds{1});
  }
  [[nodiscard]] bool overdue() const noexcept { return std::chrono::steady_clock::now() >= until_; }
  /// The largest read that the rules use: the transport's limit, or the suite's.
  [[nodiscard]] std::uint64_t largest() const noexcept {
    return std::min(capabilities.max_read_bytes, options_.largest_read_bytes);
  }
  /// Whether to test with and without a file behind the source's memory, if the transport distinguishes them.
  [[nodiscard]] std::vector<bool> backings() const {
    return capabilities.uses_backing_file && !subject_.source_memory ? std::vector<bool>{false, true}
                                                                     : std::vector<bool>{false};
  }
  /// Memory for a rule, made for the side that serves it or for the side that reads into it.
  [[nodiscard]] guarded_memory source_memory(std::uint64_t bytes, bool with_file = false) const {
    return guarded_memory{bytes, with_file, subject_.source_memory};
  }
  [[nodiscard]] guarded_memory target_memory(std::uint64_t bytes) const {
    return guarded_memory{bytes, false, subject_.target_memory};
  }
  /// Records that the rule does not apply to this subject, with the reason.
  void skip(const std::string& reason) { skipped_ = reason; }
  [[nodiscard]] const std::string& skipped() const noexcept { return skipped_; }
  [[nodiscard]] std::uint64_t random() noexcept { return random_(); }

 private:
  const conformance_subject<T>& subject_;
  const conformance_options& options_;
  std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + options_.deadline;
  std::mt19937_64 random_{std::random_device{}()};  // incarnations must differ between processes
  std::string skipped_;
};

/// A queue with an endpoint, and counts of posted and completed reads.
template <transport T>
class conformance_reader {
 public:
  using fixture = conformance_fixture<T>;

  conformance_reader(fixture& environment, T& own, std::size_t depth)
      : environment_{environment}, own_{own}, depth_{depth} {
    queue_.emplace(own.make_queue(depth));
  }
  conformance_reader(fixture& environment, T& own, std::size_t depth, const typename fixture::process& source)
      : conformance_reader{environment, own, depth} {
    connect(source);
  }

  void connect(const typename fixture::process& source) { connect(source->address(), source.self); }
  void connect(const transport_address& address, incarnation peer) {
    endpoint_.reset();
    endpoint_.emplace(own_.connect(*queue_, address, peer, environment_.left()));
  }

  /// Another endpoint on the same queue, which must end before the reader.
  [[nodiscard]] typename T::endpoint connect_beside(const typename fixture::process& source) {
    return own_.connect(*queue_, source->address(), source.self, environment_.left());
  }

  [[nodiscard]] typename T::queue& queue() noexcept { return *queue_; }
  [[nodiscard]] typename T::endpoint& endpoint() noexcept { return *endpoint_; }
  void close_endpoint() noexcept { endpoint_.reset(); }
  void close_queue() noexcept {
    endpoint_.reset();
    queue_.reset();
  }
  [[nodiscard]] std::size_t depth() const noexcept { return depth_; }

  /// Posts under a new id, the next one of read_ids.hpp; empty if the queue is full.
  [[nodiscard]] std::optional<request_id> post(const typename T::memory_region& into, std::uint64_t offset,
                                               const remote_slice& from) {
    return post_through(*endpoint_, into, offset, from);
  }
  [[nodiscard]] std::optional<request_id> post_through(typename T::endpoint& endpoint,
                                                       const typename T::memory_region& into,
                                                       std::uint64_t offset, const remote_slice& from) {
    const request_id id = id_of_read(next_++);
    if (queue_->post_read(endpoint, into, offset, from, id) == post_result::queue_full) return std::nullopt;
    posted_.push_back(id);
    return id;
  }
  /// Which call of `post` it was, counted from zero; empty: the reader has posted no such read.
  [[nodiscard]] std::optional<std::size_t> number_of(request_id id) const noexcept {
    const auto number = number_of_read(id);
    return number && *number < next_ ? number : std::nullopt;
  }

  /// Polls completions; calls `each(completion)` for every one.
  template <typename Each>
  std::size_t take(Each&& each) {
    std::array<completion, 64> batch{};
    const std::size_t count = queue_->poll(batch);
    for (std::size_t i = 0; i < count && i < batch.size(); ++i) {
      statuses_[batch[i].id].push_back(batch[i].status);
      each(batch[i]);
    }
    return count;
  }

  /// Polls completions until there are as many as posted reads, no read is outstanding, or the deadline has
  /// passed. Then polls a little longer, for completions that must not come.
  template <typename Each>
  void drain(Each&& each) {
    while (statuses_.size() < posted_.size() && !environment_.overdue()) {
      if (take(each) > 0) continue;
      if (queue_->outstanding() == 0) break;
      queue_->wait(std::min<duration>(environment_.left(), std::chrono::milliseconds{50}));
    }
    for (int i = 0; i < 3; ++i) {
      queue_->wait(std::chrono::milliseconds{1});
      take(each);
    }
  }
  void drain() {
    drain([](const completion&) {});
  }

  /// Does one read alone. Empty: the read did not complete or was not posted.
  [[nodiscard]] std::optional<completion_status> read(const typename T::memory_region& into,
                                                      std::uint64_t offset, const remote_slice& from) {
    return read_through(*endpoint_, into, offset, from);
  }
  [[nodiscard]] std::optional<completion_status> read_through(typename T::endpoint& endpoint,
                                                              const typename T::memory_region& into,
                                                              std::uint64_t offset,
                                                              const remote_slice& from) {
    const auto id = post_through(endpoint, into, offset, from);
    if (!id) return std::nullopt;
    std::optional<completion_status> status;
    while (!status && !environment_.overdue()) {
      const std::size_t count = take([&](const completion& done) {
        if (done.id == *id) status = done.status;
      });
      if (count > 0 || status) continue;
      if (queue_->outstanding() == 0) break;
      queue_->wait(std::min<duration>(environment_.left(), std::chrono::milliseconds{50}));
    }
    return status;
  }

  /// The status of a read that has completed.
  [[nodiscard]] std::optional<completion_status> status_of(request_id id) const {
    const auto found = statuses_.find(id);
    if (found == statuses_.end() || found->second.empty()) return std::nullopt;
    return found->second.front();
  }

  /// Promise 1: each posted read completed once, and there was no other completion.
  void require_each_once(findings& found, const std::string& when) const {
    std::map<request_id, std::size_t> expected;
    for (const request_id id : posted_) expected[id] = 1;
    for (const auto& [id, statuses] : statuses_) {
      const std::size_t wanted = expected.contains(id) ? 1 : 0;
      found.require(statuses.size() <= wanted, when + ": " + name_of_read(id) + " completed " +
                                                   std::to_string(statuses.size()) + " times instead of " +
                                                   std::to_string(wanted));
      expected.erase(id);
    }
    for (const auto& [id, count] : expected) {
      found.require(false, when + ": " + name_of_read(id) + " was posted and never completed");
    }
    found.require(queue_->outstanding() == 0,
                  when + ": outstanding() says " + std::to_string(queue_->outstanding()) + " after all came");
  }

 private:
  fixture& environment_;
  T& own_;
  std::size_t depth_;
  std::optional<typename T::queue> queue_;
  std::optional<typename T::endpoint> endpoint_;
  std::size_t next_ = 0;
  std::vector<request_id> posted_;
  std::map<request_id, std::vector<completion_status>> statuses_;
};

/// A description such as "completed with access denied" or "did not complete".
[[nodiscard]] inline std::string describe_status(const std::optional<completion_status>& status) {
  return status ? "completed with '" + std::string{to_string(*status)} + "'" : "did not complete";
}

/// Promise 3: the permitted outcomes of a read without permission.
[[nodiscard]] inline bool is_denial(const std::optional<completion_status>& status) noexcept {
  return status == completion_status::access_denied || status == completion_status::peer_lost;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
