/// \file pull_far.cpp
/// A pull over a simulated wide-area path: how much of it is on its way, how soon it is confirmed, and that
/// it takes no longer than if everything were asked for at once.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>

#include "pull_scene.hpp"

using namespace pull_test;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t chunk_bytes = 1_MiB;
constexpr duration step = 500us;

struct far_path {
  double rate = 0;  ///< bytes per second
  duration round_trip{};
  bool is_fresh = true;   ///< ten segments in the first round trip; otherwise as many as there are
  double later_rate = 0;  ///< when half of the bytes were sent; 0: the same
  std::uint64_t chunks = 256;
  duration later_round_trip{};  ///< when an eighth of the bytes was sent; 0: the same

  [[nodiscard]] double product() const { return rate * to_seconds(round_trip); }
};

/// A connection that answers in the order of the requests, at a rate, and has no more on its way than its
/// congestion window. That grows by what is acknowledged while there was always something to send.
class pipe {
 public:
  explicit pipe(const far_path& path) : path_{path}, congestion_window_{path.is_fresh ? 14'600.0 : 1e12} {}

  void post(const pull_task& task, time_point now) {
    asked_.push_back({now + way(), task, static_cast<double>(task.kind == kind::chunk ? chunk_bytes : 64)});
  }
  /// What the source does in one step.
  void send(time_point now) {
    while (!sent_.empty() && sent_.front().at + way() <= now) {
      on_way_ -= sent_.front().bytes;
      if (was_busy_) congestion_window_ += sent_.front().bytes;
      sent_.pop_front();
    }
    const double middle = static_cast<double>(path_.chunks * chunk_bytes) / 2;
    const double rate = path_.later_rate > 0 && total_ > middle ? path_.later_rate : path_.rate;
    double left = std::min(rate * to_seconds(step), congestion_window_ - on_way_);
    was_busy_ = true;
    while (left > 0 && was_busy_) {
      was_busy_ = !asked_.empty() && asked_.front().at <= now;
      if (was_busy_) left -= send_first(left, now);
    }
  }
  /// As the transport measures it: where that never changes, the reads tell it.
  [[nodiscard]] duration round_trip() const { return is_longer() ? path_.later_round_trip : duration{}; }
  [[nodiscard]] std::optional<pull_task> arrived(time_point now) {
    if (arriving_.empty() || arriving_.front().at > now) return std::nullopt;
    const pull_task task = arriving_.front().what;
    arriving_.pop_front();
    return task;
  }

 private:
  struct part {
    time_point at{};
    pull_task what{};
    double bytes = 0;
  };
  [[nodiscard]] duration way() const { return (is_longer() ? path_.later_round_trip : path_.round_trip) / 2; }
  [[nodiscard]] bool is_longer() const {
    const bool is_late = total_ > static_cast<double>(path_.chunks * chunk_bytes) / 8;
    return is_late && path_.later_round_trip.count() > 0;
  }
  double send_first(double most, time_point now) {
    part& first = asked_.front();
    const double bytes = std::min(most, first.bytes);
    first.bytes -= bytes;
    on_way_ += bytes;
    total_ += bytes;
    sent_.push_back({now + way(), {}, bytes});
    if (first.bytes > 0) return bytes;
    arriving_.push_back({now + way(), first.what, 0});
    asked_.pop_front();
    return bytes;
  }

  far_path path_;
  double congestion_window_;
  double on_way_ = 0;  ///< and not acknowledged
  double total_ = 0;
  bool was_busy_ = true;
  std::deque<part> asked_{};
  std::deque<part> sent_{};
  std::deque<part> arriving_{};
};

/// What a transfer has been like. *Late*: from 5/8 to 7/8 of it.
struct far_transfer {
  duration took{};
  duration first_confirmed{};
  std::size_t most_late_reads = 0;
  duration longest_late_wait{};  ///< between two confirmations
};

[[nodiscard]] far_transfer transfer(const far_path& path) {
  driver d{layout{{{"wq", dtype::u8, {path.chunks * chunk_bytes}}}, chunk_bytes}, {}};
  holder source{d.shape, 1};
  source.facts.far = true;
  const channel_id channel = d.core.open_channel(d.core.add_source(source.facts), 0, chunk_bytes);
  pipe across{path};
  far_transfer out;
  const time_point begun = d.now;
  time_point last_confirmed = d.now;
  for (; !d.core.done(); d.pass(step)) {
    const std::uint64_t before = d.core.confirmed_chunks();
    while (const auto task = d.core.next(channel, d.now)) across.post(*task, d.now);
    across.send(d.now);
    d.core.measured(channel, across.round_trip());
    while (const auto task = across.arrived(d.now)) d.perform(channel, source, *task);
    const std::uint64_t confirmed = d.core.confirmed_chunks();
    if (confirmed > path.chunks * 5 / 8 && confirmed < path.chunks * 7 / 8) {
      out.most_late_reads = std::max(out.most_late_reads, d.core.in_flight(channel));
      out.longest_late_wait = std::max(out.longest_late_wait, d.now - last_confirmed);
    }
    if (confirmed > before) last_confirmed = d.now;
    if (confirmed > 0 && before == 0) out.first_confirmed = d.now - begun;
  }
  out.took = d.now - begun;
  return out;
}

/// The time in which the chunks arrive if all are asked for at once, after the control block.
[[nodiscard]] duration shortest(const far_path& path) {
  pipe across{path};
  time_point now{1'000'000'000};
  const time_point begun = now;
  for (chunk_index i = 0; i < path.chunks; ++i) across.post({kind::chunk, i}, now);
  for (std::uint64_t arrived = 0; arrived < path.chunks; now = now + step) {
    across.send(now);
    while (across.arrived(now)) ++arrived;
  }
  return now - begun + path.round_trip;
}

constexpr double megabit = 1e6 / 8;

}  // namespace

TEST_CASE("pull: a path is filled as soon as if everything were asked for at once, in slow start and after") {
  for (const double rate : {20 * megabit, 200 * megabit, 1000 * megabit}) {
    for (const duration round_trip : {duration{1ms}, duration{20ms}, duration{100ms}}) {
      const far_path path{rate, round_trip};
      CAPTURE(rate);
      CAPTURE(round_trip.count());
      CHECK(transfer(path).took < shortest(path) * 102 / 100);
    }
  }
}

TEST_CASE("pull: a connection that has been used before may lose a round trip while the window grows") {
  for (const double rate : {20 * megabit, 200 * megabit, 1000 * megabit}) {
    const far_path path{rate, 100ms, false};
    CAPTURE(rate);
    CHECK(transfer(path).took < shortest(path) + path.round_trip * 3 / 2);
  }
}

TEST_CASE("pull: about two bandwidth-delay products are on their way, and are confirmed in their time") {
  for (const double rate : {20 * megabit, 200 * megabit, 500 * megabit}) {
    for (const duration round_trip : {duration{20ms}, duration{100ms}}) {
      const far_path path{rate, round_trip};
      CAPTURE(rate);
      CAPTURE(round_trip.count());
      const far_transfer seen = transfer(path);
      const double most = 2.2 * path.product() / static_cast<double>(chunk_bytes) + 2;
      CHECK(static_cast<double>(seen.most_late_reads) <= most);
      // What is on its way, the header read behind it, and a chunk more.
      CHECK(to_seconds(seen.longest_late_wait) <= (most + 1) * static_cast<double>(chunk_bytes) / rate);
    }
  }
}

TEST_CASE("pull: the first chunk that comes from afar is confirmed by the header read right behind it") {
  for (const double rate : {20 * megabit, 200 * megabit, 1000 * megabit}) {
    const far_path path{rate, 100ms, false};
    CAPTURE(rate);
    CHECK(to_seconds(transfer(path).first_confirmed - 2 * path.round_trip - 5ms) <=
          static_cast<double>(chunk_bytes) / rate);
  }
}

TEST_CASE("pull: a path whose rate rises is filled again, and of one whose rate falls less is on its way") {
  for (const bool is_fresh : {false, true}) {
    const far_path rises{100 * megabit, 100ms, is_fresh, 1000 * megabit};
    CHECK(transfer(rises).took < shortest(rises) + 3 * rises.round_trip);
    const far_path falls{1000 * megabit, 100ms, is_fresh, 100 * megabit};
    const far_transfer seen = transfer(falls);
    CHECK(seen.took < shortest(falls) * 102 / 100);
    CHECK(static_cast<double>(seen.most_late_reads) <=
          2.2 * falls.product() / 10 / static_cast<double>(chunk_bytes) + 2);
  }
}

TEST_CASE("pull: a path that has become longer is filled again, as soon as the transport knows it") {
  for (const duration later : {duration{50ms}, duration{150ms}}) {
    const far_path path{1000 * megabit, 10ms, false, 0, 2048, later};
    CAPTURE(later.count());
    CHECK(transfer(path).took < shortest(path) + 6 * later);
    const far_path other{1000 * megabit, later, false, 0, 2048, 10ms};  // or shorter
    CHECK(transfer(other).took < shortest(other) * 102 / 100);
  }
}

TEST_CASE("pull: a chunk may be as large as any number") {
  for (const std::uint64_t large : {1ull << 58, 1ull << 60, ~0ull}) {
    for (const bool is_ahead : {false, true}) {
      driver d{layout{{{"wq", dtype::u8, {1000}}, {"wk", dtype::u8, {1000}}}, large}, {}};
      holder source{d.shape, 1};
      source.facts.far = true;
      if (is_ahead) source.name_segments(d.shape);
      CAPTURE(large);
      CAPTURE(is_ahead);
      CHECK(d.drain(d.core.open_channel(d.core.add_source(source.facts), 0, 1_MiB), source).size() ==
            d.shape.chunk_count());
      CHECK(d.core.done());
    }
  }
}

TEST_CASE("far window: it begins with a quarter, has at least one chunk, and at most all") {
  CHECK(far_window{32, 1000}.bytes() == 9000);
  CHECK(far_window{3, 1000}.bytes() == 3000);
  CHECK(far_window{1, 1000}.bytes() == 1000);
  far_window window{32, 1000};
  time_point now{1};
  for (int i = 0; i < 100; ++i) window.arrived(1000, now = now + 100ms, 10ms);
  CHECK(window.bytes() < 1300);  // and another one is asked for when less than a chunk is on its way
  for (int i = 0; i < 100; ++i) window.arrived(1000, now = now + 1ms, 100ms);
  CHECK(window.bytes() == 32'000);
}

TEST_CASE("far window: chunks that arrive at the same time say nothing of the rate") {
  far_window window{1000, 1000};
  const std::uint64_t before = window.bytes();
  for (int i = 0; i < 1000; ++i) window.arrived(1000, time_point{5}, duration{1});
  CHECK(window.bytes() == before);
}
