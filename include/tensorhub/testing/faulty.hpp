#pragma once
/// \file faulty.hpp
/// `faulty<T>`: a transport that fails like networks and peers do, in an order that a seed reproduces.
///
///     hub<testing::faulty<transports::tcp>>::subscriber reader{
///         {...}, {.seed = 7, .faults = {.lost_peers = 0.01, .delays = 0.1, .max_delay = 5ms}}};
///
/// The fate of each read is drawn when the read is posted, from a generator of its own queue (seeded by
/// `seed` and the queue's number), so that a thread that posts the same reads again meets the same faults.
/// With delays and full queues alone the transport still conforms. Errors, lost peers and failed connections
/// are faults that any transport may report, and a caller must handle them. Torn bytes are a fault that no
/// transport may have: they show that digests are checked.
///
/// `faulty<T>` uses the protocol and the name of the inner transport, so peers may use that transport itself.
/// Thread safety: as concept `transport` requires.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/testing/held_completions.hpp"
#include "tensorhub/testing/wrapped_transport.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Probabilities, 0 to 1, per read unless stated otherwise.
struct fault_rates {
  double delays = 0;  ///< the read completes late, by up to `max_delay`, evenly distributed
  std::chrono::nanoseconds max_delay{std::chrono::milliseconds{2}};
  double queue_full = 0;  ///< the post returns `queue_full` although there is room
  double errors = 0;      ///< the read ends as `local_error`; the endpoint stays usable
  double lost_peers = 0;  ///< the read ends as `peer_lost`, and so do all later reads on that endpoint
  double torn_bytes = 0;  ///< the read ends `ok` with one byte changed
  double failed_connections = 0;  ///< per call of `connect`: throws `transport_failed`
  /// No fault: how long `revoke` takes per region, as where a network adapter registers large memory again.
  std::chrono::nanoseconds revoke_time{0};
  /// No fault either: how long `cut_off` takes, as where copies of a device for that reader must end first.
  std::chrono::nanoseconds cut_off_time{0};
};

/// How often each fault occurred; shared by all transports that have this object.
struct fault_counts {
  std::atomic<std::uint64_t> delays{0}, queue_full{0}, errors{0}, lost_peers{0}, torn_bytes{0},
      failed_connections{0};
};

template <transport Inner>
class faulty : public wrapped_transport<Inner> {
 public:
  /// Those of the inner transport, but `revoke` may take long.
  static constexpr transport_capabilities capabilities = [] {
    transport_capabilities out = Inner::capabilities;
    out.revokes_cheaply = false;
    return out;
  }();

  struct options {
    typename Inner::options inner{};
    std::uint64_t seed = 1;
    fault_rates faults{};
    std::shared_ptr<fault_counts> counts{};  ///< null: faults are not counted
  };
  using typename wrapped_transport<Inner>::memory_region;

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return inner_.peer(); }
    [[nodiscard]] bool usable() const noexcept { return !lost_ && inner_.usable(); }

   private:
    friend class faulty;
    explicit endpoint(typename Inner::endpoint inner) : inner_{std::move(inner)} {}
    typename Inner::endpoint inner_;
    bool lost_ = false;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& connection, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      if (held_.outstanding() >= depth_) return post_result::queue_full;
      read_fate fate{std::chrono::steady_clock::now()};
      if (connection.lost_) {
        fate.instead = completion_status::peer_lost;
        return held_.post_finished(id, fate);
      }
      if (hits(faults_.queue_full)) {
        count(&fault_counts::queue_full);
        return post_result::queue_full;
      }
      if (hits(faults_.lost_peers)) {
        count(&fault_counts::lost_peers);
        connection.lost_ = true;
        fate.instead = completion_status::peer_lost;
      } else if (hits(faults_.errors)) {
        count(&fault_counts::errors);
        fate.instead = completion_status::local_error;
      } else if (hits(faults_.torn_bytes)) {
        count(&fault_counts::torn_bytes);
        fate.torn = true;
      }
      if (hits(faults_.delays)) {
        count(&fault_counts::delays);
        fate.due += std::chrono::nanoseconds{
            std::uniform_int_distribution<std::int64_t>{0, faults_.max_delay.count()}(random_)};
      }
      return held_.post(connection.inner_, into, offset, from, id, fate);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return held_.poll(completions);
    }
    void wait(duration timeout) noexcept { held_.wait(timeout); }
    void wake() noexcept { held_.wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return held_.outstanding(); }

   private:
    friend class faulty;
    queue(typename Inner::queue inner, std::size_t depth, std::uint64_t seed, const fault_rates& faults,
          std::shared_ptr<fault_counts> counts)
        : depth_{depth},
          held_{std::move(inner), depth},
          faults_{faults},
          random_{seed},
          counts_{std::move(counts)} {}
    [[nodiscard]] bool hits(double probability) noexcept {
      return probability > 0 && std::uniform_real_distribution<double>{}(random_) < probability;
    }
    void count(std::atomic<std::uint64_t> fault_counts::*which) noexcept {
      if (counts_) ++((*counts_).*which);
    }
    std::size_t depth_;
    held_completions<Inner> held_;
    fault_rates faults_;
    std::mt19937_64 random_;
    std::shared_ptr<fault_counts> counts_;
  };

  explicit faulty(options chosen = {}, incarnation self = {})
      : wrapped_transport<Inner>{std::move(chosen.inner), self},
        seed_{chosen.seed},
        faults_{chosen.faults},
        counts_{std::move(chosen.counts)} {}

  void revoke(memory_region& region) noexcept {
    std::this_thread::sleep_for(faults_.revoke_time);
    this->inner().revoke(region);
  }
  void cut_off(incarnation peer) noexcept {
    std::this_thread::sleep_for(faults_.cut_off_time);
    this->inner().cut_off(peer);
  }
  [[nodiscard]] queue make_queue(std::size_t depth) {
    return {this->inner().make_queue(depth), depth, seed_ + queues_++, faults_, counts_};
  }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout, incarnation self = {}) {
    if (on.hits(faults_.failed_connections)) {
      on.count(&fault_counts::failed_connections);
      throw error(errc::transport_failed,
                  std::string{Inner::name} + ": " + where.text + " refused (a planted fault)");
    }
    return endpoint{connect_as(self, this->inner(), on.held_.inner(), where, peer, timeout)};
  }

 private:
  std::uint64_t seed_;
  fault_rates faults_;
  std::shared_ptr<fault_counts> counts_;
  std::atomic<std::uint64_t> queues_{0};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
