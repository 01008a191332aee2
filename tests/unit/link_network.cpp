// The simulated data network: completion times to the nanosecond, shares, failures, counters, repetition.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/simulation/event_queue.hpp"
#include "support/simulation/flow_rates.hpp"
#include "support/simulation/link_network.hpp"
#include "tensorhub/error.hpp"

using namespace tensorhub;
using namespace tensorhub::testing;
using namespace std::chrono_literals;

namespace {

/// A network of equal hosts, 1 byte per nanosecond unless told otherwise. Times are counted from the first
/// event.
struct small_network {
  static constexpr std::int64_t running = -1;
  static constexpr std::uint64_t rate = 1'000'000'000;

  event_queue events{1};
  link_network network{events};
  time_point origin = events.now();

  host_id host(const std::string& datacenter = "", const std::string& rack = "", std::uint64_t speed = rate) {
    return network.add_host({.location = {.datacenter = datacenter, .rack = rack, .host = {}, .device = {}},
                             .sending_bytes_per_second = speed,
                             .receiving_bytes_per_second = speed});
  }
  struct outcome {
    flow_id id{};
    std::int64_t done = running;
    std::int64_t lost = running;
  };
  std::unique_ptr<outcome> start(host_id from, host_id to, std::uint64_t bytes) {
    auto out = std::make_unique<outcome>();
    out->id = network.start(
        from, to, bytes, [this, o = out.get()] { o->done = now(); },
        [this, o = out.get()] { o->lost = now(); });
    return out;
  }
  [[nodiscard]] std::int64_t now() const { return (events.now() - origin).count(); }
  void at(std::int64_t nanoseconds, action what) {
    events.schedule(origin + duration{nanoseconds}, std::move(what));
  }
  void run() {
    while (events.step(time_point::never())) {
    }
  }
};

constexpr std::int64_t lan = 5'000;

}  // namespace

TEST_CASE("a lone flow takes delay, bytes over the slower link, delay") {
  small_network net;
  const host_id a = net.host();
  const host_id b = net.host("", "", 250'000'000);
  const auto to_slow = net.start(a, b, 1'000'000);
  net.run();
  CHECK(to_slow->done == lan + 4'000'000 + lan);
  CHECK(to_slow->lost == small_network::running);
  CHECK(net.network.sent_bytes(a) == 1'000'000);
  CHECK(net.network.received_bytes(b) == 1'000'000);
  CHECK(net.network.received_bytes(a) == 0);
  CHECK(net.network.carried_bytes("", "") == 1'000'000);
  CHECK_FALSE(net.network.exists(to_slow->id));

  const std::int64_t before = net.now();
  const auto empty = net.start(a, b, 0);
  net.run();
  CHECK(empty->done - before == 2 * lan);
}

TEST_CASE("flows of one sender share it; who is left takes all") {
  small_network net;
  const host_id a = net.host();
  const auto small = net.start(a, net.host(), 1'000'000);
  const auto large = net.start(a, net.host(), 3'000'000);
  net.at(lan + 10, [&] {
    CHECK(net.network.bytes_per_second(small->id) == doctest::Approx(0.5e9));
    CHECK(net.network.moving_flows() == 2);
  });
  net.run();
  CHECK(small->done == 2'000'000 + 2 * lan);
  CHECK(large->done == 4'000'000 + 2 * lan);  // 1 MB in the first 2 ms, then 2 MB alone
}

TEST_CASE("both directions of a host run at full rate") {
  small_network net;
  const host_id a = net.host();
  const host_id b = net.host();
  const auto there = net.start(a, b, 1'000'000);
  const auto back = net.start(b, a, 1'000'000);
  net.run();
  CHECK(there->done == 1'000'000 + 2 * lan);
  CHECK(back->done == 1'000'000 + 2 * lan);
}

TEST_CASE("what a flow cannot use is left to the others") {
  // a has three flows; the one to the slow host gets 0.1, the two others 0.45 each.
  small_network net;
  const host_id a = net.host();
  const auto slow = net.start(a, net.host("", "", 100'000'000), 1'000'000);
  const auto one = net.start(a, net.host(), 900'000);
  const auto two = net.start(a, net.host(), 900'000);
  net.run();
  CHECK(one->done == 2'000'000 + 2 * lan);
  CHECK(two->done == 2'000'000 + 2 * lan);
  CHECK(slow->done == 10'000'000 + 2 * lan);
}

TEST_CASE("rack links hold back flows between racks only") {
  small_network net;
  net.network.add_rack("", "left", 500'000'000, 250'000'000);
  std::array<host_id, 4> left{net.host("", "left"), net.host("", "left"), net.host("", "left"),
                              net.host("", "left")};
  const host_id right = net.host("", "right");  // has no limits of its own
  const host_id other = net.host("", "right");
  const auto inside = net.start(left[2], left[3], 1'000'000);
  const auto up_one = net.start(left[0], right, 1'000'000);
  const auto up_two = net.start(left[1], other, 1'000'000);
  const auto down = net.start(right, left[0], 1'000'000);
  net.run();
  CHECK(inside->done == 1'000'000 + 2 * lan);
  CHECK(up_one->done == 4'000'000 + 2 * lan);
  CHECK(up_two->done == 4'000'000 + 2 * lan);
  CHECK(down->done == 4'000'000 + 2 * lan);
  CHECK_THROWS_AS(net.network.add_rack("", "left", 1, 1), tensorhub::error);
}

TEST_CASE("a rack link with room holds back nobody until it is full") {
  // Senders of 1 byte/ns each below a rack link of 4: four fit, eight get half of their rate.
  small_network net;
  net.network.add_rack("", "left", 4'000'000'000, 4'000'000'000);
  std::vector<std::unique_ptr<small_network::outcome>> flows;
  for (int i = 0; i < 3; ++i) flows.push_back(net.start(net.host("", "left"), net.host(), 2'000'000));
  net.at(1'000'000, [&] {  // 3 of 4 are taken; there is room for one more
    flows.push_back(net.start(net.host("", "left"), net.host(), 2'000'000));
  });
  net.at(1'000'000 + lan + 1, [&] {
    for (const auto& flow : flows) CHECK(net.network.bytes_per_second(flow->id) == doctest::Approx(1e9));
  });
  net.at(1'500'000, [&] {
    for (int i = 0; i < 4; ++i) flows.push_back(net.start(net.host("", "left"), net.host(), 2'000'000));
  });
  net.at(1'500'000 + lan + 1, [&] {
    for (const auto& flow : flows) CHECK(net.network.bytes_per_second(flow->id) == doctest::Approx(0.5e9));
  });
  net.run();
  // 1.5 MB alone, 0.5 MB at half rate, for the first three.
  for (std::size_t i = 0; i < 3; ++i) CHECK(flows[i]->done == 1'500'000 + 1'000'000 + 2 * lan);
}

TEST_CASE("the wide area: delay and capacity of each direction, bytes by pair of datacenters") {
  small_network net;
  const host_id eu = net.host("eu");
  const host_id us = net.host("us");
  const host_id us_too = net.host("us");
  CHECK_THROWS_AS(net.start(eu, us, 1), tensorhub::error);
  net.network.add_wide_area("eu", "us", {.bytes_per_second = 100'000'000, .delay = 40ms});
  CHECK_THROWS_AS(net.start(eu, us, 1), tensorhub::error);  // the request has no way
  net.network.add_wide_area("us", "eu", {.bytes_per_second = 50'000'000, .delay = 30ms});
  CHECK_THROWS_AS(net.network.add_wide_area("us", "eu", {.bytes_per_second = 1, .delay = 30ms}),
                  tensorhub::error);

  const auto one = net.start(eu, us, 1'000'000);
  const auto two = net.start(eu, us_too, 1'000'000);
  const auto back = net.start(us, eu, 1'000'000);
  const auto local = net.start(us, us_too, 500'000);
  net.run();
  CHECK(one->done == 30'000'000 + 20'000'000 + 40'000'000);
  CHECK(two->done == 30'000'000 + 20'000'000 + 40'000'000);
  CHECK(back->done == 40'000'000 + 20'000'000 + 30'000'000);
  CHECK(local->done == 500'000 + 2 * lan);
  CHECK(net.network.carried_bytes("eu", "us") == 2'000'000);
  CHECK(net.network.carried_bytes("us", "eu") == 1'000'000);
  CHECK(net.network.carried_bytes("us", "us") == 500'000);
  CHECK(net.network.carried_bytes("eu", "eu") == 0);
  CHECK(net.network.carried_bytes("eu", "nowhere") == 0);
}

TEST_CASE("cancel gives the share to the others, at every stage") {
  small_network net;
  const host_id a = net.host();
  const host_id b = net.host();
  const auto kept = net.start(a, b, 1'000'000);
  const auto early = net.start(a, b, 1'000'000);
  const auto middle = net.start(a, b, 1'000'000);
  net.at(lan - 1, [&] { net.network.cancel(early->id); });
  net.at(lan + 400'000, [&] {
    net.network.cancel(middle->id);
    net.network.cancel(middle->id);  // nothing more
  });
  const auto late = net.start(net.host(), net.host(), 1'000);
  net.at(lan + 1'000 + 1, [&] {
    CHECK(net.network.exists(late->id));
    net.network.cancel(late->id);
  });
  net.run();
  CHECK(kept->done == 400'000 + 800'000 + 2 * lan);
  CHECK(early->done == small_network::running);
  CHECK(middle->done == small_network::running);
  CHECK(late->done == small_network::running);
  CHECK(net.network.sent_bytes(a) == 1'200'000);  // what was carried counts
  CHECK(net.network.received_bytes(b) == 1'200'000);
  net.network.cancel(kept->id);
  net.network.cancel({});
}

TEST_CASE("a source that fails: told after the detection time; the others get its readers' links") {
  small_network net;
  const host_id dying = net.host();
  const host_id healthy = net.host();
  const host_id reader = net.host();
  const auto lost = net.start(dying, reader, 1'000'000);
  const auto other = net.start(healthy, reader, 1'000'000);
  std::unique_ptr<small_network::outcome> too_late;
  std::unique_ptr<small_network::outcome> after;
  net.at(lan + 1'000'000, [&] { net.network.fail(dying, 2ms); });
  net.at(lan + 1'100'000, [&] { too_late = net.start(dying, reader, 1'000); });
  net.at(20'000'000, [&] {
    CHECK(net.network.has_failed(dying));
    net.network.restore(dying);
    after = net.start(dying, reader, 1'000);
  });
  net.run();
  CHECK(lost->lost == lan + 1'000'000 + 2'000'000);
  CHECK(lost->done == small_network::running);
  CHECK(other->done == 1'000'000 + 500'000 + 2 * lan);
  CHECK(too_late->lost == lan + 1'100'000 + lan + 2'000'000);
  CHECK(after->done == 20'000'000 + 1'000 + 2 * lan);
  CHECK(net.network.sent_bytes(dying) == 500'000 + 1'000);
}

TEST_CASE("a reader that fails is told nothing, and its source's share is free") {
  small_network net;
  const host_id source = net.host();
  const host_id dying = net.host();
  const auto unheard = net.start(source, dying, 1'000'000);
  const auto other = net.start(source, net.host(), 1'000'000);
  bool message = false;
  net.at(lan + 1'000'000, [&] {
    net.network.message(source, dying, 100, [&] { message = true; });
    net.network.fail(dying, 2ms);
    net.network.restore(dying);  // another process at the same place
  });
  net.run();
  CHECK(unheard->done == small_network::running);
  CHECK(unheard->lost == small_network::running);
  CHECK(other->done == 1'000'000 + 500'000 + 2 * lan);
  CHECK_FALSE(message);
}

TEST_CASE("messages take their time and no capacity") {
  small_network net;
  const host_id a = net.host();
  const host_id b = net.host("", "", 500'000'000);
  const auto flow = net.start(a, b, 1'000'000);
  std::vector<std::int64_t> arrivals;
  for (int i = 0; i < 3; ++i) net.network.message(a, b, 1'000, [&] { arrivals.push_back(net.now()); });
  net.run();
  CHECK(arrivals == std::vector<std::int64_t>(3, lan + 2'000));
  CHECK(flow->done == 2'000'000 + 2 * lan);
  CHECK(net.network.message_bytes() == 3'000);
  CHECK(net.network.sent_bytes(a) == 1'000'000);
  CHECK_THROWS_AS(net.network.message(a, host_id{7}, 1, [] {}), tensorhub::error);
  CHECK_THROWS_AS(net.start(a, b, flow_rates::largest_flow_bytes + 1), tensorhub::error);
  CHECK_THROWS_AS(net.host("", "", 0), tensorhub::error);
}

namespace {

struct history {
  std::vector<std::int64_t> ends{};
  std::uint64_t asked = 0;
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t carried = 0;
  std::size_t moving = 0;
};

/// 40 hosts in two datacenters of four racks, flows of all sizes between all of them.
history run_random(std::uint64_t seed) {
  event_queue events{seed};
  link_network network{events};
  history out;
  std::vector<host_id> hosts;
  for (int i = 0; i < 40; ++i) {
    const std::string datacenter = i % 2 == 0 ? "eu" : "us";
    hosts.push_back(network.add_host(
        {.location =
             {.datacenter = datacenter, .rack = "r" + std::to_string(i % 8 / 2), .host = {}, .device = {}},
         .sending_bytes_per_second = 1'000'000'000 + 100'000'000 * events.below(10),
         .receiving_bytes_per_second = 1'000'000'000 + 100'000'000 * events.below(10)}));
  }
  for (const char* datacenter : {"eu", "us"}) {
    network.add_rack(datacenter, "r0", 2'000'000'000, 1'500'000'000);
    network.add_rack(datacenter, "r1", 1'000'000'000, 3'500'000'000);
  }
  network.add_wide_area("eu", "us", {.bytes_per_second = 3'000'000'000, .delay = 1ms});
  network.add_wide_area("us", "eu", {.bytes_per_second = 2'000'000'000, .delay = 2ms});
  for (int i = 0; i < 3'000; ++i) {
    events.schedule(time_point{static_cast<std::int64_t>(events.below(50'000'000))}, [&] {
      const std::uint64_t bytes = events.below(3'000'000);
      out.asked += bytes;
      network.start(hosts[events.below(40)], hosts[events.below(40)], bytes,
                    [&] { out.ends.push_back(events.now().nanoseconds); });
    });
  }
  while (events.step(time_point::never())) {
  }
  for (const host_id host : hosts) {
    out.sent += network.sent_bytes(host);
    out.received += network.received_bytes(host);
  }
  for (const char* from : {"eu", "us"}) {
    for (const char* to : {"eu", "us"}) out.carried += network.carried_bytes(from, to);
  }
  out.moving = network.moving_flows();
  return out;
}

}  // namespace

TEST_CASE("every byte that was asked for is counted once; a seed replays, another one differs") {
  const history first = run_random(5);
  CHECK(first.ends.size() == 3'000);
  CHECK(first.moving == 0);
  CHECK(first.sent == first.asked);
  CHECK(first.received == first.asked);
  CHECK(first.carried == first.asked);
  CHECK(run_random(5).ends == first.ends);
  CHECK(run_random(6).ends != first.ends);
}

namespace {

/// Max-min fairness by its definition: all rates rise together; a flow stops at the first full link.
std::vector<double> by_progressive_filling(const std::vector<double>& capacity,
                                           const std::vector<std::vector<std::uint32_t>>& paths) {
  std::vector<double> rate(paths.size(), -1);
  std::vector<double> left = capacity;
  while (std::ranges::count(rate, -1.0) != 0) {
    double lowest = std::numeric_limits<double>::infinity();
    std::uint32_t bottleneck = 0;
    for (std::uint32_t link = 0; link < capacity.size(); ++link) {
      double open = 0;
      for (std::size_t f = 0; f < paths.size(); ++f) {
        if (rate[f] < 0 && std::ranges::count(paths[f], link) != 0) ++open;
      }
      if (open == 0 || left[link] / open >= lowest) continue;
      lowest = left[link] / open;
      bottleneck = link;
    }
    for (std::size_t f = 0; f < paths.size(); ++f) {
      if (rate[f] >= 0 || std::ranges::count(paths[f], bottleneck) == 0) continue;
      rate[f] = lowest;
      for (const std::uint32_t link : paths[f]) left[link] -= lowest;
    }
  }
  return rate;
}

/// `links` different ones of `all`.
std::vector<std::uint32_t> random_path(event_queue& random, std::uint32_t all, std::size_t links) {
  std::vector<std::uint32_t> path;
  while (path.size() < links) {
    const auto link = static_cast<std::uint32_t>(random.below(all));
    if (std::ranges::find(path, link) == path.end()) path.push_back(link);
  }
  return path;
}

}  // namespace

TEST_CASE("flows that begin together get the rates of max-min fairness") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    event_queue random{seed};
    flow_rates rates;
    std::vector<double> capacity;
    std::vector<std::vector<std::uint32_t>> paths;
    for (int link = 0; link < 12; ++link) {
      capacity.push_back(static_cast<double>(1 + random.below(20)) * 1e8);
      rates.add_link(static_cast<std::uint64_t>(capacity.back()));
    }
    for (std::uint32_t flow = 0; flow < 40; ++flow) {
      paths.push_back(random_path(random, 12, 1 + random.below(5)));
      rates.begin(flow, paths.back(), 1'000'000, time_point{});
    }
    rates.share(time_point{});
    const std::vector<double> expected = by_progressive_filling(capacity, paths);
    for (std::uint32_t flow = 0; flow < 40; ++flow) {
      INFO("seed " << seed << " flow " << flow);
      CHECK(rates.bytes_per_second(flow) == doctest::Approx(expected[flow]).epsilon(1e-6));
    }
  }
}

TEST_CASE("while flows come and go, no link is over its capacity and no flow stands still") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    event_queue random{seed};
    flow_rates rates;
    std::vector<double> capacity;
    for (int link = 0; link < 12; ++link) {
      capacity.push_back(static_cast<double>(1 + random.below(60)) * 1e8);
      rates.add_link(static_cast<std::uint64_t>(capacity.back()));
    }
    std::vector<std::vector<std::uint32_t>> paths(30);  // empty: does not move
    std::int64_t now = 0;
    for (int step = 0; step < 400; ++step) {
      now += static_cast<std::int64_t>(random.below(1'000));
      for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
        const auto flow = static_cast<std::uint32_t>(random.below(30));
        if (paths[flow].empty()) {
          paths[flow] = random_path(random, 12, 1 + random.below(5));
          rates.begin(flow, paths[flow], 1'000'000'000, time_point{now});
        } else {
          CHECK(rates.end(flow, time_point{now}) <= 1'000'000'000);
          paths[flow].clear();
        }
      }
      rates.share(time_point{now});
      std::vector<double> carried(12);
      for (std::uint32_t flow = 0; flow < 30; ++flow) {
        if (paths[flow].empty()) continue;
        const double rate = rates.bytes_per_second(flow);
        CHECK(rate > 1e6);  // the thinnest link has 1e8, and 30 flows at most
        for (const std::uint32_t link : paths[flow]) carried[link] += rate;
      }
      for (std::size_t link = 0; link < 12; ++link) CHECK(carried[link] <= capacity[link] * (1 + 1e-6));
      const bool some_move = std::ranges::any_of(paths, [](const auto& path) { return !path.empty(); });
      CHECK((rates.first_end() < time_point::never()) == some_move);
    }
  }
}

TEST_CASE("events at the same time happen in their order, and actions own what they capture") {
  event_queue events{3};
  std::vector<std::pair<std::int64_t, int>> seen;
  std::vector<std::pair<std::int64_t, int>> expected;
  for (int i = 0; i < 2'000; ++i) {
    const auto at = static_cast<std::int64_t>(10 + events.below(100));
    expected.emplace_back(at, i);
    if (i % 2 == 0) {
      events.schedule(time_point{at}, [&, i] { seen.emplace_back(events.now().nanoseconds, i); });
    } else {  // too large to lie inside the action, and move-only
      events.schedule(time_point{at}, [&, owned = std::make_unique<int>(i), filler = std::array<int, 16>{}] {
        seen.emplace_back(events.now().nanoseconds, *owned + filler[3]);
      });
    }
  }
  while (events.step(time_point{1'000})) {
  }
  std::ranges::stable_sort(expected, {}, &std::pair<std::int64_t, int>::first);
  CHECK(seen == expected);
  CHECK(events.executed() == 2'000);

  auto shared = std::make_shared<int>(1);
  {
    action one{[shared] {}};
    action two{std::move(one)};
    CHECK(shared.use_count() == 2);
    two = action{[shared, filler = std::array<int, 16>{}] { static_cast<void>(filler); }};
    CHECK(shared.use_count() == 2);
    event_queue dropped{1};
    dropped.after(1ms, std::move(two));
    CHECK(shared.use_count() == 2);
  }
  CHECK(shared.use_count() == 1);
}
