#pragma once
/// \file queue_rules.hpp
/// Rules of the transport conformance suite: the endpoints of one queue do not depend on one another
/// (promise 1). The library reads so: all sources of a lane are connected on its one queue.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// A second source, with other bytes, and an endpoint to it on the reader's queue. Of the slots of the
/// target, those with odd numbers are read from it.
template <transport T>
struct shared_queue_scene : conformance_scene<T> {
  static constexpr std::size_t depth = 16;
  static constexpr std::uint64_t other_seed = 33;
  std::uint64_t slot_bytes;
  guarded_memory other_from;
  typename conformance_fixture<T>::process other;
  remote_region other_remote;
  typename T::endpoint other_endpoint;

  shared_queue_scene(conformance_fixture<T>& fixture, std::uint64_t bytes_of_a_slot)
      : conformance_scene<T>{fixture, bytes_of_a_slot, depth * bytes_of_a_slot, depth},
        slot_bytes{bytes_of_a_slot},
        other_from(fixture.source_memory(bytes_of_a_slot)),
        other{fixture.start()},
        other_remote{publish_other()},
        other_endpoint{this->reader.connect_beside(other)} {}

  [[nodiscard]] static bool is_of_other(std::size_t slot) noexcept { return slot % 2 == 1; }
  [[nodiscard]] bool post_all() {
    bool all = true;
    for (std::size_t slot = 0; slot < depth; ++slot) {
      const std::uint64_t at = slot * slot_bytes;
      const auto id = is_of_other(slot) ? this->reader.post_through(other_endpoint, this->into(), at,
                                                                    {&other_remote, 0, slot_bytes})
                                        : this->reader.post(this->into(), at, {&this->remote, 0, slot_bytes});
      all = all && id.has_value();
    }
    return all;
  }
  /// Of a read of `post_all` that has completed, while the first source or its endpoint ends.
  void check(findings& found, const completion& done, const std::string& when) const {
    const auto slot = this->reader.number_of(done.id);
    if (!slot) return;  // `require_each_once` says so
    const bool is_others = is_of_other(*slot);
    found.require(!is_others || done.status == completion_status::ok,
                  when + ", and a read of another endpoint of the queue " + describe_status(done.status));
    found.require(
        done.status != completion_status::ok ||
            this->to.holds(*slot * slot_bytes, slot_bytes, is_others ? other_seed : this->from_seed, 0),
        when + ", and a read of " + (is_others ? "another" : "that") + " endpoint ended ok with wrong bytes");
  }
  /// The other endpoint is as good as before.
  void require_other_usable(findings& found, const std::string& when) {
    found.require(other_endpoint.usable(), when + ", and another endpoint of the queue is not usable");
    this->to.fill(this->to_seed);
    const auto status =
        this->reader.read_through(other_endpoint, this->into(), 0, {&other_remote, 0, slot_bytes});
    found.require(status == completion_status::ok && this->to.holds(0, slot_bytes, other_seed, 0),
                  when + ", and the next read of another endpoint " + describe_status(status));
  }

 private:
  [[nodiscard]] remote_region publish_other() {
    other_from.fill(other_seed);
    return other.describe(other.add(other_from.range(), region_access::remote_read));
  }
};

/// Reads of two endpoints are outstanding; `end(scene)` ends one of the endpoints, or its source.
template <transport T, typename End>
void require_spared(conformance_fixture<T>& fixture, findings& found, const std::string& when,
                    std::size_t round, const End& end) {
  shared_queue_scene<T> scene{
      fixture, std::max<std::uint64_t>(fixture.largest() >> (2 * (round % 4) + 2), std::uint64_t{1})};
  const auto check = [&](const completion& done) { scene.check(found, done, when); };
  found.require(scene.post_all(), "an empty queue does not take its depth");
  if (round % 2 == 1) static_cast<void>(scene.reader.take(check));
  end(scene);
  scene.reader.drain(check);
  scene.reader.require_each_once(found, when);
  scene.require_other_usable(found, when);
}

/// Promise 1 if one of two endpoints of a queue is destroyed, or its source cuts the reader off: reads of the
/// other one end ok, once each, with their own bytes.
template <transport T>
std::vector<std::string> closed_endpoint_spares_others(conformance_fixture<T>& fixture) {
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds && found.empty(); ++round) {
    require_spared(fixture, found, "an endpoint was destroyed", round,
                   [](shared_queue_scene<T>& scene) { scene.reader.close_endpoint(); });
    require_spared(fixture, found, "a source cut the reader off", round,
                   [](shared_queue_scene<T>& scene) { scene.source->cut_off(scene.target.self); });
  }
  return found.take();
}

/// Promise 1 if one of the two sources of a queue dies, or is stopped.
template <transport T>
std::vector<std::string> lost_source_spares_others(conformance_fixture<T>& fixture) {
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds && found.empty(); ++round) {
    require_spared(fixture, found, "a source died", round,
                   [&](shared_queue_scene<T>& scene) { fixture.kill(scene.source); });
  }
  if (fixture.can_stall_one()) {
    require_spared(fixture, found, "a source is silent", 0,
                   [&](shared_queue_scene<T>& scene) { fixture.stall(scene.source); });
  }
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
