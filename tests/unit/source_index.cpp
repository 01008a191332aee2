/// \file source_index.cpp
/// Who may be read, among ten thousand: the shortlist has the least loaded of each group, wherever loads and
/// workers come and go.

#include "tensorhub/service/catalog/source_index.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tensorhub/service/catalog/state.hpp"

using namespace tensorhub;
using namespace tensorhub::catalog_detail;

namespace {

source_places& places_of(worker_state& worker) noexcept {
  return worker.as_source.places;
}

/// Ten thousand workers: 4 datacenters, 16 racks in each, 20 hosts in a rack; one in eleven has everything,
/// three publish.
class fleet {
 public:
  static constexpr std::size_t size = 10'000;

  explicit fleet(std::uint64_t seed) : random_{seed} {
    for (std::size_t i = 0; i < size; ++i) {
      auto& worker = *workers.emplace_back(std::make_unique<worker_state>());
      worker.id = {i + 1};
      worker.location.datacenter = "d" + std::to_string(i % 4);
      worker.location.rack = "r" + std::to_string(i / 4 % 16);  // the same names in each datacenter
      worker.location.host = worker.location.rack + "-h" + std::to_string(i / 64 % 20);
      worker.as_source.offered = i % 11 == 0 ? offer::complete : offer::receiving;
      worker.publisher = i % 4000 == 0;
      worker.as_source.load =
          static_cast<std::uint32_t>(random_() % 24);  // also beyond the classes that are told apart
      insert(worker);
    }
  }
  void insert(worker_state& worker) {
    index.insert(worker, worker.as_source.places, worker.location, worker.as_source.load,
                 worker.as_source.offered == offer::complete, worker.publisher);
    present.insert(&worker);
  }
  void erase(worker_state& worker) {
    index.erase(worker.as_source.places, places_of);
    present.erase(&worker);
  }
  void change(worker_state& worker, std::uint32_t load) {
    worker.as_source.load = load;
    if (present.contains(&worker)) index.change_load(worker, worker.as_source.places, load, places_of);
  }

  /// The loads of the workers that a reader there is shown, by group; each that counts once.
  [[nodiscard]] std::vector<worker_state*> near(const location& where, std::size_t each) {
    std::vector<worker_state*> seen;
    index.visit_near(where, each, random_(), [&](worker_state& worker) {
      if (std::ranges::find(seen, &worker) != seen.end()) return false;
      seen.push_back(&worker);
      return true;
    });
    return seen;
  }
  /// Least loaded first, of those who belong.
  template <typename Belongs>
  [[nodiscard]] std::vector<std::uint32_t> loads(Belongs&& belongs) const {
    std::vector<std::uint32_t> out;
    for (const worker_state* worker : present) {
      if (belongs(*worker)) out.push_back(std::min(worker->as_source.load, source_group::most_load));
    }
    std::ranges::sort(out);
    return out;
  }
  /// Among `seen` there are `each` workers of the group (or all of it), and no others are less loaded.
  template <typename Belongs>
  void check_group(const std::vector<worker_state*>& seen, std::size_t each, Belongs&& belongs) const {
    std::vector<std::uint32_t> shown;
    for (const worker_state* worker : seen) {
      if (belongs(*worker)) shown.push_back(std::min(worker->as_source.load, source_group::most_load));
    }
    std::ranges::sort(shown);
    const auto all = loads(belongs);
    const std::size_t wanted = std::min(each, all.size());
    REQUIRE(shown.size() >= wanted);
    for (std::size_t i = 0; i < wanted; ++i) REQUIRE(shown[i] == all[i]);
  }
  void check(const location& where, std::size_t each) {
    const auto seen = near(where, each);
    REQUIRE(seen.size() <= 5 * each);
    for (const worker_state* worker : seen) REQUIRE(present.contains(const_cast<worker_state*>(worker)));
    const auto same = [&](const worker_state& w) { return w.location.datacenter == where.datacenter; };
    check_group(seen, each, same);
    check_group(seen, each, [&](const worker_state& w) { return same(w) && w.location.rack == where.rack; });
    check_group(seen, each, [&](const worker_state& w) { return same(w) && w.location.host == where.host; });
    check_group(seen, each,
                [&](const worker_state& w) { return same(w) && w.as_source.offered == offer::complete; });
    check_group(seen, each, [](const worker_state& w) { return w.publisher; });
  }

  std::vector<std::unique_ptr<worker_state>> workers;
  std::set<worker_state*> present;
  source_index index;
  std::mt19937_64 random_;
};

TEST_CASE("source index: the shortlist has the least loaded of each group") {
  fleet f{1};
  CHECK(f.index.complete_count() == fleet::size / 11 + 1);
  // Group names are those of one datacenter: racks are called the same in all of them.
  for (int i = 0; i < 40; ++i) f.check(f.workers[f.random_() % fleet::size]->location, 8);
  f.check({.datacenter = "d1"}, 8);
  CHECK(f.near({.datacenter = "elsewhere"}, 8).size() == 3);  // publishers, wherever they are
}

TEST_CASE("source index: it follows loads and workers that come and go") {
  fleet f{2};
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 2000; ++i) {
      worker_state& worker = *f.workers[f.random_() % fleet::size];
      switch (f.random_() % 4) {
        case 0:
          if (f.present.contains(&worker))
            f.erase(worker);
          else
            f.insert(worker);
          break;
        default:
          f.change(worker, static_cast<std::uint32_t>(f.random_() % 24));
      }
    }
    f.check(f.workers[f.random_() % fleet::size]->location, 8);
  }
  std::size_t complete = 0;
  for (const worker_state* worker : f.present)
    complete += worker->as_source.offered == offer::complete ? 1 : 0;
  CHECK(f.index.complete_count() == complete);
  for (const auto& worker : f.workers) {
    if (f.present.contains(worker.get())) f.erase(*worker);
  }
  CHECK(f.index.empty());
  CHECK(f.index.complete_count() == 0);
  CHECK(f.near({.datacenter = "d1"}, 8).empty());
}

TEST_CASE("source index: of equally loaded ones all have their turn") {
  fleet f{3};
  for (const auto& worker : f.workers) f.change(*worker, 0);
  const location where{.datacenter = "d2"};
  std::map<worker_state*, int> turns;
  for (int i = 0; i < 3000; ++i) {
    for (worker_state* worker : f.near(where, 8)) ++turns[worker];
  }
  CHECK(turns.size() > 1500);  // of 2500 in that datacenter
}

TEST_CASE("source index: who does not count does not use up the list, within a bound") {
  fleet f{4};
  std::size_t asked = 0;
  const location where{.datacenter = "d0"};
  f.index.visit_near(where, 8, 12345, [&](worker_state&) {
    ++asked;
    return false;
  });
  CHECK(asked > 3 * 8);
  CHECK(asked <= 5 * 64);  // nobody is asked for ever
}

TEST_CASE("source index: far workers are those of the other datacenters") {
  fleet f{5};
  std::map<std::string, int> seen;
  f.index.visit_far({.datacenter = "d0"}, 8, 99, [&](worker_state& worker) {
    ++seen[worker.location.datacenter];
    return true;
  });
  CHECK(seen == std::map<std::string, int>{{"d1", 16}, {"d2", 16}, {"d3", 16}});
  CHECK(f.index.complete_count("d0") + f.index.complete_count("d1") + f.index.complete_count("d2") +
            f.index.complete_count("d3") ==
        f.index.complete_count());
  CHECK(f.index.complete_count("nowhere") == 0);
}

}  // namespace

TEST_CASE("source index: names without workers are forgotten") {
  source_index index;
  worker_state worker;
  for (int i = 0; i < 10'000; ++i) {
    worker.location.datacenter = "d" + std::to_string(i);
    worker.location.rack = worker.location.host = "x";
    index.insert(worker, worker.as_source.places, worker.location, 0, true, false);
    index.erase(worker.as_source.places, places_of);
  }
  CHECK(index.group_count() <= 1000);
}

TEST_CASE("upstream chains: their ends, and who is on them, are those found by walking") {
  constexpr std::size_t count = 300;
  std::vector<std::unique_ptr<worker_state>> workers;
  for (std::size_t i = 0; i < count; ++i) workers.push_back(std::make_unique<worker_state>());
  std::mt19937_64 random{7};
  const auto any = [&]() -> worker_state& { return *workers[random() % count]; };
  const auto walk = [](const worker_state& from, const worker_state* wanted) {
    const worker_state* at = &from;
    bool seen = at == wanted;
    while (at->receiving && at->as_reader.upstream != nullptr) {
      at = at->as_reader.upstream;
      seen = seen || at == wanted;
    }
    return std::pair{at, seen};
  };
  std::size_t longest = 0;
  std::size_t on_chain = 0;
  for (int step = 0; step < 60'000; ++step) {
    worker_state& worker = any();
    const bool grows = step / 5'000 % 2 == 0;  // long chains, then short ones
    if (random() % (grows ? 64 : 3) == 0) {
      worker.as_reader.upstream = nullptr;
    } else if (random() % 8 == 0) {
      worker.receiving.reset();
    } else if (worker_state& next = any(); !walk(next, &worker).second) {
      if (random() % 2 == 0 && next.as_reader.upstream != nullptr &&
          !walk(*next.as_reader.upstream, &worker).second) {
        worker.as_reader.upstream =
            std::exchange(next.as_reader.upstream, nullptr);  // takes the place before `next`
        worker.receiving.emplace();
        update_chain(next);
        update_chain(worker);
        next.as_reader.upstream = &worker;
        update_chain(next);
      } else {
        worker.receiving.emplace();
        worker.as_reader.upstream = &next;
      }
    }
    update_chain(worker);
    const worker_state& from = any();
    const worker_state& wanted = any();
    const auto [last, seen] = walk(from, &wanted);
    REQUIRE(&from.as_reader.chain.end() == last);
    REQUIRE(from.as_reader.chain.passes(wanted.as_reader.chain) == seen);
    on_chain += seen ? 1 : 0;
    std::size_t length = 0;
    for (const worker_state* at = &from; at != last; at = at->as_reader.upstream) ++length;
    longest = std::max(longest, length);
  }
  CHECK(longest > 40);
  CHECK(on_chain > 500);
}

TEST_CASE("upstream chains: one that would come back to its beginning ends there") {
  worker_state first;
  worker_state second;
  for (worker_state* each : {&first, &second}) each->receiving.emplace();
  first.as_reader.upstream = &second;
  second.as_reader.upstream = &first;
  update_chain(first);
  update_chain(second);
  CHECK(&first.as_reader.chain.end() == &second);
  CHECK(&second.as_reader.chain.end() == &second);
}
