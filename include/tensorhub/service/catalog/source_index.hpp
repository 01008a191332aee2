#pragma once
/// \file source_index.hpp
/// The workers that may be read for one shard of one version. The index finds a few good candidates among ten
/// thousand workers in microseconds.
///
/// Workers are grouped by host, rack and datacenter; further groups hold the workers that have every chunk,
/// and the publishers. A group orders its workers by load, so that a query finds the least loaded without
/// visiting the others; among equally loaded workers it starts at a random one. All operations are O(1),
/// except for the look-up of a group's name.
///
/// Thread safety: none.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/types/location.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

struct worker_state;

/// The workers of one group, by load. All loads of `most_load` and more share one class.
class source_group {
 public:
  static constexpr std::uint32_t most_load = 16;
  struct position {
    source_group* group = nullptr;
    std::uint32_t load = 0;
    std::uint32_t index = 0;
  };

  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  friend class source_index;
  std::array<std::vector<worker_state*>, most_load + 1> by_load_{};
  std::size_t size_ = 0;
};

/// A worker's places in the groups; part of the worker.
struct source_places {
  static constexpr std::size_t host = 0;
  static constexpr std::size_t rack = 1;
  static constexpr std::size_t datacenter = 2;
  static constexpr std::size_t complete = 3;
  static constexpr std::size_t publisher = 4;
  std::array<source_group::position, 5> in{};
  std::uint64_t mark = 0;  ///< of the last query that visited the worker
};

class source_index {
 public:
  source_index() = default;
  source_index(const source_index&) = delete;  // positions point into it
  source_index& operator=(const source_index&) = delete;

  /// `places`: of the same worker; `has_all`: the worker has every chunk.
  void insert(worker_state& worker, source_places& places, const location& where, std::uint32_t load,
              bool has_all, bool publisher) {
    if (group_count() >= sweep_at_) forget_empty_groups();
    if (!where.host.empty())
      put(hosts_[where.datacenter + '\n' + where.host], worker, places, source_places::host, load);
    if (!where.rack.empty())
      put(racks_[where.datacenter + '\n' + where.rack], worker, places, source_places::rack, load);
    put(datacenters_[where.datacenter], worker, places, source_places::datacenter, load);
    if (has_all) put(complete_[where.datacenter], worker, places, source_places::complete, load);
    if (publisher) put(publishers_, worker, places, source_places::publisher, load);
  }
  template <typename PlacesOf>
  void erase(source_places& places, PlacesOf&& places_of) noexcept {
    for (std::size_t kind = 0; kind < places.in.size(); ++kind) take_out(places, kind, places_of);
  }
  template <typename PlacesOf>
  void change_load(worker_state& worker, source_places& places, std::uint32_t load, PlacesOf&& places_of) {
    for (std::size_t kind = 0; kind < places.in.size(); ++kind) {
      const source_group::position old = places.in[kind];
      const std::uint32_t now = std::min(load, source_group::most_load);
      if (old.group == nullptr || old.load == now) continue;
      auto& same = old.group->by_load_[now];
      same.push_back(&worker);  // may throw, before anything has changed
      take_out(places, kind, places_of);
      places.in[kind] = {old.group, now, static_cast<std::uint32_t>(same.size() - 1)};
      ++old.group->size_;
    }
  }

  /// Workers that have every chunk.
  [[nodiscard]] std::size_t complete_count() const noexcept {
    std::size_t count = 0;
    for (const auto& [name, group] : complete_) count += group.size();
    return count;
  }
  [[nodiscard]] std::size_t complete_count(const std::string& datacenter) const {
    const auto found = complete_.find(datacenter);
    return found == complete_.end() ? 0 : found->second.size();
  }
  [[nodiscard]] bool empty() const noexcept {
    return detail::all_of(datacenters_, [](const auto& entry) { return entry.second.size() == 0; });
  }

  /// The number of group names in the index.
  [[nodiscard]] std::size_t group_count() const noexcept {
    return hosts_.size() + racks_.size() + datacenters_.size() + complete_.size();
  }

  /// Calls `visit(worker)` for the least loaded workers of each group that matters to a reader at `where`,
  /// nearest groups first; a worker may be visited several times. `visit` returns whether the worker counts;
  /// the visit of a group ends after `each` counted workers. `random` is any number.
  template <typename Visit>
  void visit_near(const location& where, std::size_t each, std::uint64_t random, Visit&& visit) const {
    if (!where.host.empty()) visit_group(hosts_, where.datacenter + '\n' + where.host, each, random, visit);
    if (!where.rack.empty()) visit_group(racks_, where.datacenter + '\n' + where.rack, each, random, visit);
    visit_group(datacenters_, where.datacenter, each, random, visit);
    visit_group(complete_, where.datacenter, each, random, visit);
    visit_one(publishers_, each, random, visit);
  }
  template <typename Visit>
  void visit_far(const location& where, std::size_t each, std::uint64_t random, Visit&& visit) const {
    for (const auto& [name, group] : datacenters_) {
      if (name != where.datacenter) visit_one(group, each, random, visit);
    }
    for (const auto& [name, group] : complete_) {
      if (name != where.datacenter) visit_one(group, each, random, visit);
    }
  }

 private:
  using groups = std::map<std::string, source_group>;

  static void put(source_group& group, worker_state& worker, source_places& places, std::size_t kind,
                  std::uint32_t load) {
    auto& same = group.by_load_[std::min(load, source_group::most_load)];
    same.push_back(&worker);
    places.in[kind] = {&group, std::min(load, source_group::most_load),
                       static_cast<std::uint32_t>(same.size() - 1)};
    ++group.size_;
  }
  template <typename PlacesOf>
  static void take_out(source_places& places, std::size_t kind, PlacesOf&& places_of) noexcept {
    source_group::position& at = places.in[kind];
    if (at.group == nullptr) return;
    auto& same = at.group->by_load_[at.load];
    same[at.index] = same.back();
    places_of(*same[at.index]).in[kind].index = at.index;
    same.pop_back();
    --at.group->size_;
    at.group = nullptr;
  }

  template <typename Visit>
  static void visit_group(const groups& all, const std::string& name, std::size_t each, std::uint64_t random,
                          Visit& visit) {
    const auto found = all.find(name);
    if (found != all.end()) visit_one(found->second, each, random, visit);
  }
  template <typename Visit>
  static void visit_one(const source_group& group, std::size_t each, std::uint64_t random, Visit& visit) {
    std::size_t counted = 0;
    std::size_t looked = 0;
    for (const auto& same : group.by_load_) {
      const std::size_t first = same.empty() ? 0 : static_cast<std::size_t>(random % same.size());
      for (std::size_t i = 0; i < same.size(); ++i) {
        if (counted == each || ++looked > most_looks) return;
        counted += visit(*same[first + i < same.size() ? first + i : first + i - same.size()]) ? 1 : 0;
      }
    }
  }

  /// A worker may join with a different location each time, so at most twice as many group names are kept as
  /// have workers.
  void forget_empty_groups() {
    for (groups* all : {&hosts_, &racks_, &datacenters_, &complete_})
      std::erase_if(*all, [](const auto& entry) { return entry.second.size() == 0; });
    sweep_at_ = std::max(first_sweep, 2 * group_count());
  }

  static constexpr std::size_t most_looks = 64;  ///< per group and query
  static constexpr std::size_t first_sweep = 256;

  std::size_t sweep_at_ = first_sweep;

  groups hosts_;
  groups racks_;
  groups datacenters_;
  groups complete_;  ///< by datacenter
  source_group publishers_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
