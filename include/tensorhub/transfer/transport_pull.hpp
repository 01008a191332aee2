#pragma once
/// \file transport_pull.hpp
/// A pull over one transport: the data path of a reader, which is what a lane does per chunk.
///
/// Each lane has its own queue, endpoints and scratch memory, which it keeps for the next update
/// (lane_pool.hpp). It digests each chunk right after the chunk has arrived, while the bytes are in the cache
/// of the core that received them. All decisions are in pull_lane.hpp and pull_driver.hpp, which know no
/// transport.
///
/// Thread safety: as pull_driver.hpp says.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transfer/chunk_digests.hpp"
#include "tensorhub/transfer/lane_pool.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/pull_lane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The target of a pull. All is borrowed.
template <typename Region>
struct pull_memory {
  const layout* shape = nullptr;
  std::span<const Region> regions{};
  std::span<const segment_place> places{};  ///< one per layout segment
};

template <transport Transport, integrity Integrity>
class transport_lane final : public pull_lane {
 public:
  using memory_type = pull_memory<typename Transport::memory_region>;
  using borrowed_type = typename lane_pool<Transport>::lane;

  /// Borrows everything.
  transport_lane(pull_driver& driver, lane_id number, Transport& through, borrowed_type& own,
                 const memory_type& into, std::uint64_t seed)
      : pull_lane{driver, number, own.scratch()},
        through_{&through},
        own_{&own},
        queue_{&own.queue()},
        into_{into},
        seed_{seed} {}

  void work() {
    read_all();
    leave();
    std::array<completion, 16> rest;
    while (queue_->outstanding() > 0 && queue_->poll(rest) > 0) {
    }
  }

  void wake() noexcept override { queue_->wake(); }

 private:
  using endpoint_type = typename Transport::endpoint;

  void read_all() {
    const listed others_wake_it{*this};
    std::array<completion, 64> room;
    // The CPU digests each chunk of a batch, while nothing is posted; a device digests the whole batch.
    const bool on_device =
        detail::any_of(into_.places, [](const segment_place& place) { return place.device != nullptr; });
    const std::span completions = std::span{room}.first(on_device ? room.size() : room.size() / 4);
    for (;;) {
      const bool has_closed = report();  // before anything that may take long, such as connecting
      if (finished()) return;
      const bool tries_again = open_channels();
      const bool has_posted = post_tasks();
      const std::size_t count = queue_->poll(completions);
      for (std::size_t i = 0; i < count; ++i) process(completions[i]);
      const bool has_checked = check_present();  // the CPU digests while reads are under way
      const bool has_digested = digest_arrived();
      if (has_posted || count > 0 || has_closed || tries_again || has_checked || has_digested) continue;
      if (digests_.has_begun())
        static_cast<void>(digests_.finished(while_digesting));
      else
        queue_->wait(time_to_wait());
    }
  }

  [[nodiscard]] bool post_tasks() {
    bool has_posted = false;
    for (std::size_t channel = 0; channel < channel_count(); ++channel) {
      while (may_read(channel)) {
        const std::span<const read_task> tasks = take_tasks(channel);
        std::size_t done = 0;
        for (; done < tasks.size() && post(channel, tasks[done]) == post_result::posted; ++done)
          posted(channel, tasks[done].what);
        has_posted = has_posted || done > 0;
        if (done < tasks.size()) not_posted(channel, done);
        if (done < tasks.size() || tasks.empty()) break;
      }
    }
    return has_posted;
  }

  [[nodiscard]] post_result post(std::size_t channel, const read_task& task) {
    endpoint_type& endpoint = *endpoints_[look_of(channel)];
    const request_id id = id_of(channel, task.what);
    if (task.what.kind != pull_task::kind_type::chunk) {
      const scratch_range into = scratch_of(channel, task.what.kind);
      return queue_->post_read(endpoint, own_->scratch_region(), into.offset, {task.from, 0, into.bytes}, id);
    }
    const chunk_slice slice = into_.shape->slice(task.what.chunk);
    const segment_place& place = into_.places[slice.segment];
    return queue_->post_read(endpoint, into_.regions[place.region], place.offset + slice.offset,
                             {task.from, slice.offset, slice.bytes}, id);
  }

  void process(const completion& done) {
    const request read = request_of(done.id);
    if (!ended(read, done.status)) return;
    if (read.what.kind != pull_task::kind_type::chunk) return look_arrived(read, done.status);
    digest128 digest;
    if (Integrity::enabled && done.status == completion_status::ok) {
      const placed_chunk placed = place_of(*into_.shape, into_.places, read.what.chunk);
      if (placed.device != nullptr) {
        arrived_.chunks.push_back(placed);
        arrived_.through.push_back(read.channel);
        return;
      }
      digest = chunk_digests<Integrity>::by_cpu(seed_, placed);
    }
    chunk_arrived(read, done.status, digest);
  }

  /// Digests a chunk that may be here already, or adds it to a device's next batch. False: there is none.
  [[nodiscard]] bool check_present() {
    if (!Integrity::enabled || arrived_.chunks.size() >= most_in_batch) return false;
    const std::optional<chunk_index> chunk = take_check();
    if (!chunk) return false;
    const placed_chunk placed = place_of(*into_.shape, into_.places, *chunk);
    if (placed.device == nullptr) {
      checked(*chunk, chunk_digests<Integrity>::by_cpu(seed_, placed));
    } else {
      arrived_.chunks.push_back(placed);
      arrived_.through.push_back(no_channel);
    }
    return true;
  }

  /// Takes in the batch whose digests are made, and begins those of the next one. True: there is more to do
  /// now. Throws what the device throws: without digests no chunk can be believed.
  [[nodiscard]] bool digest_arrived() {
    if (!digests_.finished(duration::zero())) return false;
    const bool was_digesting = !digested_.chunks.empty();
    if (was_digesting) batch_arrived(digested_, made_);
    digested_.chunks.clear();
    digested_.through.clear();
    if (arrived_.chunks.empty()) return was_digesting;
    std::swap(digested_, arrived_);
    made_.resize(digested_.chunks.size());
    digests_.begin(seed_, digested_.chunks, made_);
    return was_digesting || !digests_.has_begun();  // made already: taken in next time
  }

  connected connect(std::size_t look, const pull_target& target, const connection_ends& ends,
                    duration patience, bool may_be_kept) override {
    std::optional<endpoint_type>& made = endpoints_[look];
    made.reset();
    if (may_be_kept) {
      if (auto kept = own_->take(ends)) made.emplace(*std::move(kept));
    }
    const bool is_kept = made.has_value();
    if (!is_kept)
      made.emplace(connect_as(ends.reader, *through_, *queue_, target.address, ends.source, patience));
    if constexpr (requires { made->ordered_read_bytes(); })
      return {is_kept, made->ordered_read_bytes()};
    else
      return {is_kept, 0};
  }
  void close(std::size_t look) noexcept override { endpoints_[look].reset(); }
  void keep(std::size_t look, connection_ends ends) override {
    own_->keep(std::move(ends), *std::move(endpoints_[look]));
    endpoints_[look].reset();
  }
  [[nodiscard]] bool usable(std::size_t look) const noexcept override { return endpoints_[look]->usable(); }
  [[nodiscard]] duration round_trip(std::size_t look) const noexcept override {
    if constexpr (requires { endpoints_[look]->round_trip(); })
      return endpoints_[look]->round_trip();
    else
      return {};
  }
  [[nodiscard]] std::string path(std::size_t look) const override {
    const endpoint_type& endpoint = *endpoints_[look];
    std::string text{Transport::name};
    if constexpr (requires { endpoint.through(); }) {
      text = endpoint.why();
    } else if constexpr (requires { endpoint.why(); }) {
      if (const std::string reason = endpoint.why(); !reason.empty()) text += " (" + reason + ")";
    }
    return text;
  }

  static constexpr duration while_digesting =
      std::chrono::microseconds{100};  ///< reads may complete meanwhile

  static constexpr std::size_t most_in_batch = 64;

  Transport* through_;
  borrowed_type* own_;
  typename Transport::queue* queue_;
  memory_type into_;
  std::uint64_t seed_;
  std::array<std::optional<endpoint_type>, most_looks> endpoints_{};  ///< by look
  batch arrived_{};
  batch digested_{};
  std::vector<digest128> made_;
  chunk_digests<Integrity> digests_;  ///< after `made_`, into which devices write
};

template <transport Transport, integrity Integrity>
class transport_pull final : public pull_driver {
 public:
  using memory_type = pull_memory<typename Transport::memory_region>;

  /// Borrows the lanes, and what is in `into`.
  transport_pull(lane_pool<Transport>& lanes, const memory_type& into, const digest_seeds& seeds,
                 chunk_index first_chunk, const pull_driver_options& options, callbacks handlers)
      : pull_driver{*into.shape, digests_of(seeds), first_chunk, options, std::move(handlers)},
        pool_{&lanes},
        into_{into} {}

 private:
  [[nodiscard]] static pull_digests digests_of(const digest_seeds& seeds) noexcept {
    return {Integrity::enabled,
            [](std::uint64_t seed, std::span<const digest128> table) noexcept {
              return Integrity::root(seed, table);
            },
            seeds};
  }

  void run_lane(lane_id number) override {
    const std::size_t depth = most_reads() + pull_lane::most_looks + 1;
    auto own = pool_->borrow(number, depth, pull_lane::scratch_words(*this));
    transport_lane<Transport, Integrity>{*this, number, pool_->through(), *own, into_, seeds().chunks}.work();
    pool_->give_back(number, std::move(own));
  }

  lane_pool<Transport>* pool_;
  memory_type into_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
