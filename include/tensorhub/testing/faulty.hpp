#pragma once
/// \file faulty.hpp
/// `faulty<T>`: a transport that fails as networks and peers do, in an order that a seed repeats.
///
///     hub<testing::faulty<transports::tcp>>::subscriber reader{
///         {...}, {.seed = 7, .faults = {.lost_peers = 0.01, .delays = 0.1, .longest_delay = 5ms}}};
///
/// Each read draws its fate when it is posted, from a generator of its own queue (seeded by `seed` and the
/// queue's number), so that one thread that posts the same reads again meets the same faults. With delays and
/// full queues alone the transport still conforms. Errors, lost peers and failed connections are what any
/// transport may report: a caller must cope. Torn bytes are what no transport may deliver: they show that
/// digests are looked at.
///
/// It speaks the inner transport's protocol and carries its name: peers may use that transport as it is.
/// Thread safety: that of concept `transport`.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/testing/held_completions.hpp"
#include "tensorhub/testing/wrapped_transport.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Probabilities, 0 to 1, per read if not said otherwise.
struct fault_rates {
  double delays = 0;  ///< completes late: up to `longest_delay`, evenly
  std::chrono::nanoseconds longest_delay{std::chrono::milliseconds{2}};
  double queue_full = 0;          ///< the post is turned away, though there is room
  double errors = 0;              ///< ends as `local_error`; the endpoint stays usable
  double lost_peers = 0;          ///< ends as `peer_lost`, and so does everything later on that endpoint
  double torn_bytes = 0;          ///< ends `ok` with one byte changed
  double failed_connections = 0;  ///< per call of `connect`: throws `transport_failed`
};

/// How often each fault came; shared by all who were given it.
struct fault_counts {
  std::atomic<std::uint64_t> delays{0}, queue_full{0}, errors{0}, lost_peers{0}, torn_bytes{0},
      failed_connections{0};
};

template <transport Inner>
class faulty : public wrapped_transport<Inner> {
 public:
  struct options {
    typename Inner::options inner{};
    std::uint64_t seed = 1;
    fault_rates faults{};
    std::shared_ptr<fault_counts> counts{};  ///< null: nobody counts
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
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      if (held_.outstanding() >= depth_) return post_result::queue_full;
      read_fate fate{std::chrono::steady_clock::now()};
      if (through.lost_) {
        fate.instead = completion_status::peer_lost;
        return held_.post_finished(id, fate);
      }
      if (hits(faults_.queue_full)) {
        count(&fault_counts::queue_full);
        return post_result::queue_full;
      }
      if (hits(faults_.lost_peers)) {
        count(&fault_counts::lost_peers);
        through.lost_ = true;
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
            std::uniform_int_distribution<std::int64_t>{0, faults_.longest_delay.count()}(random_)};
      }
      return held_.post(through.inner_, into, offset, from, id, fate);
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

  explicit faulty(options how = {}, incarnation self = {})
      : wrapped_transport<Inner>{std::move(how.inner), self},
        seed_{how.seed},
        faults_{how.faults},
        counts_{std::move(how.counts)} {}

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return {this->inner().make_queue(depth), depth, seed_ + queues_++, faults_, counts_};
  }
  [[nodiscard]] endpoint connect(queue& on, const transport_address& where, incarnation peer,
                                 duration timeout) {
    if (on.hits(faults_.failed_connections)) {
      on.count(&fault_counts::failed_connections);
      throw error(errc::transport_failed,
                  std::string{Inner::name} + ": " + where.text + " refused (a planted fault)");
    }
    return endpoint{this->inner().connect(on.held_.inner(), where, peer, timeout)};
  }

 private:
  std::uint64_t seed_;
  fault_rates faults_;
  std::shared_ptr<fault_counts> counts_;
  std::atomic<std::uint64_t> queues_{0};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
