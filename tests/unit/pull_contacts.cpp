// Which lane connects to which source, and for how long.

#include "tensorhub/transfer/pull_contacts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <vector>

#include "pull_scene.hpp"

using namespace tensorhub;
using namespace std::chrono_literals;

namespace {

/// A pull with some sources; all attempts are the test's.
struct contacts_of_pull {
  explicit contacts_of_pull(std::size_t sources, contact_options options = {.connect_timeout = 1s}) {
    contacts.emplace(transfer, options);
    for (std::size_t i = 0; i < sources; ++i) add();
  }
  source_slot add(bool far = false) {
    pull_test::holder source{shape, transfer.source_count() + 1};
    source.facts.far = far;
    return transfer.add_source(source.facts);
  }
  pull_contacts::attempt take(lane_id lane) {
    const auto next = contacts->next(lane);
    REQUIRE(next.has_value());
    return *next;
  }
  [[nodiscard]] bool nothing(lane_id lane) { return !contacts->next(lane).has_value(); }
  bool time_out(lane_id lane, const pull_contacts::attempt& which) {
    return contacts->failed(lane, which, errc::timed_out, "no answer");
  }
  pull_contacts::attempt reach(lane_id lane) {
    const auto which = take(lane);
    contacts->made(lane, which);
    return which;
  }

  layout shape = pull_test::nine_chunks();
  pull transfer{shape, {}, 0};
  std::optional<pull_contacts> contacts;
};

}  // namespace

TEST_CASE("pull contacts: every lane connects to every source, once") {
  contacts_of_pull scene{2};
  for (const lane_id lane : {0u, 1u}) {
    std::vector<source_slot> reached;
    for (int i = 0; i < 2; ++i) reached.push_back(scene.reach(lane).slot);
    std::ranges::sort(reached);
    CHECK(reached == std::vector<source_slot>{0, 1});
    CHECK(scene.nothing(lane));
  }
  scene.add();
  CHECK(scene.reach(1).slot == 2);
  CHECK(scene.reach(0).slot == 2);
}

TEST_CASE("pull contacts: one lane tries what nobody has reached, the others keep reading") {
  contacts_of_pull scene{3};
  scene.reach(0);
  scene.reach(1);
  const auto tried = scene.take(0);
  CHECK(tried.explores);
  CHECK(scene.nothing(1));
  scene.contacts->made(0, tried);
  const auto known = scene.take(1);  // what another lane has reached first
  CHECK(known.slot == tried.slot);
  CHECK_FALSE(known.explores);
}

TEST_CASE("pull contacts: while nothing is reached, each lane tries another source") {
  contacts_of_pull scene{2};
  CHECK(scene.take(0).slot != scene.take(1).slot);
}

TEST_CASE("pull contacts: attempts at one of several sources are short, then longer, and then it is lost") {
  contacts_of_pull scene{2};
  const auto stopped = scene.take(0);
  CHECK(stopped.patience == 200ms);
  REQUIRE(scene.time_out(0, stopped));
  const auto other = scene.take(0);
  CHECK(other.slot != stopped.slot);  // what was tried for the shortest time
  SUBCASE("nothing is reached") {
    CHECK(scene.time_out(0, other));
    std::array<duration, 2> spent{};
    spent[stopped.slot] = stopped.patience;
    spent[other.slot] = other.patience;
    for (bool again = true; again;) {
      const auto next = scene.take(0);
      CHECK(next.patience <= 200ms + spent[next.slot]);
      spent[next.slot] = spent[next.slot] + next.patience;
      again = scene.time_out(0, next);
      CHECK(again == (spent[next.slot] < 1s));
      if (!again) CHECK(scene.transfer.is_lost(next.slot));
    }
  }
  SUBCASE("another source is reached") {
    scene.contacts->made(0, other);
    const auto again = scene.take(0);
    CHECK(again.slot == stopped.slot);
    CHECK(again.patience == 300ms);  // of next_connect_timeout, 500 ms
    CHECK_FALSE(scene.time_out(0, again));
    CHECK(scene.transfer.is_lost(stopped.slot));
    CHECK(scene.transfer.take_failure().value().detail == "connecting: no answer");
    CHECK(scene.nothing(0));
  }
}

TEST_CASE("pull contacts: a source in another datacenter has the whole time") {
  contacts_of_pull scene{0, {.connect_timeout = 5s}};
  scene.add(true);
  scene.add(true);
  CHECK(scene.take(0).patience == 5s);
}

TEST_CASE("pull contacts: the only source has all the time in two attempts, between which others may come") {
  contacts_of_pull scene{1, {.connect_timeout = 5s}};
  const auto first = scene.take(0);
  CHECK(first.patience == 2s);
  SUBCASE("none comes") {
    REQUIRE(scene.time_out(0, first));
    const auto second = scene.take(0);
    CHECK(second.patience == 3s);
    CHECK_FALSE(scene.time_out(0, second));
  }
  SUBCASE("one has come, and another lane has reached it") {
    scene.add();
    CHECK(scene.reach(1).slot == 1);
    CHECK_FALSE(scene.time_out(0, first));
  }
  CHECK(scene.transfer.is_lost(0));
}

TEST_CASE("pull contacts: a wide-area source is explored by the first lane, if that one is not busy") {
  contacts_of_pull scene{0};
  const source_slot near = scene.add();
  const source_slot far = scene.add(true);
  CHECK(scene.take(1).slot == near);
  CHECK(scene.nothing(1));
  SUBCASE("free") {
    CHECK(scene.reach(0).slot == far);
    CHECK(scene.take(1).slot == far);
  }
  SUBCASE("connecting") {
    const source_slot other = scene.add(true);
    const source_slot first = scene.take(0).slot;
    CHECK(first != near);
    CHECK(scene.take(2).slot == (first == far ? other : far));
  }
  SUBCASE("busy with something else") {
    static_cast<void>(scene.transfer.open_channel(near, 0));
    CHECK(scene.nothing(2));
    scene.transfer.leave_reads(0);
    CHECK(scene.take(2).slot == far);
  }
}

TEST_CASE("pull contacts: a refused connection is final, and one that fails after another lane's is, too") {
  contacts_of_pull scene{2};
  const auto refused = scene.take(0);
  CHECK_FALSE(scene.contacts->failed(0, refused, errc::transport_failed, "refused"));
  CHECK(scene.transfer.take_failure().value().reason == errc::source_lost);
  const auto reached = scene.reach(0);
  const auto later = scene.take(1);
  CHECK(later.slot == reached.slot);
  CHECK_FALSE(scene.time_out(1, later));
  CHECK(scene.transfer.take_failure().value().reason == errc::timed_out);
}

TEST_CASE(
    "pull contacts: without a descriptor a lane does without what another lane has reached, and no source is "
    "blamed") {
  contacts_of_pull scene{1};
  SUBCASE("reached by another lane") {
    const auto reached = scene.reach(0);
    CHECK_FALSE(scene.contacts->failed(1, scene.take(1), errc::system_failed, "no descriptor"));
    CHECK_FALSE(scene.transfer.is_lost(reached.slot));
    CHECK(scene.nothing(1));  // it does not try again and again
  }
  SUBCASE("reached by none") {
    CHECK_FALSE(scene.contacts->failed(0, scene.take(0), errc::system_failed, "no descriptor"));
    CHECK(scene.transfer.take_failure().value().reason == errc::system_failed);
  }
}

TEST_CASE("pull contacts: a source that was released is connected to no more, and counts no more") {
  contacts_of_pull scene{1};
  SUBCASE("reached before") {
    scene.reach(0);
    scene.transfer.retire_source(0);
    CHECK(scene.nothing(1));
  }
  SUBCASE("not reached before") {
    scene.transfer.retire_source(0);
    CHECK(scene.nothing(0));
  }
  const source_slot slot = scene.add();
  const auto only = scene.take(0);
  CHECK(only.slot == slot);
  CHECK(only.patience == 1s);
}

TEST_CASE("pull contacts: between attempts a lane ends its reads of a source that was released") {
  contacts_of_pull scene{1};
  const channel_id channel = scene.contacts->made(0, scene.take(0));
  REQUIRE(scene.transfer.next(channel).has_value());  // its block
  scene.transfer.retire_source(0);
  scene.add();
  duration tried{};
  for (bool again = true; again;) {
    const auto attempt = scene.take(0);
    CHECK(attempt.patience <= 200ms + tried);
    CHECK(scene.nothing(1));
    tried = tried + attempt.patience;
    again = scene.time_out(0, attempt);
  }
  CHECK(tried >= 1s);
  CHECK(scene.transfer.is_lost(1));
}

namespace {

/// Two whole sources; lane 0 reads a chunk of the first one, and lane 1 has read all others from the second.
struct waiting_read {
  pull_test::driver d{};
  pull_contacts contacts{d.core, {.connect_timeout = 1s}};
  pull_test::holder first{d.shape, 1};
  pull_test::holder second{d.shape, 2};
  pull_test::holder third{d.shape, 3};
  std::array<std::array<channel_id, 2>, 2> channels{};  ///< by lane and source
  chunk_index chunk = 0;
  std::optional<pull_contacts::attempt> attempt{};  ///< of lane 0, at the third one

  explicit waiting_read(bool connects) {
    d.core.add_source(first.facts);
    d.core.add_source(second.facts);
    for (const lane_id lane : {0u, 1u}) {
      for (std::size_t i = 0; i < 2; ++i) {
        const auto which = contacts.next(lane).value();
        channels[lane][which.slot] = contacts.made(lane, which);
      }
    }
    REQUIRE(d.believe(channels[0][0], first));
    REQUIRE(d.believe(channels[1][1], second));
    chunk = d.take(channels[0][0], pull_test::kind::chunk);
    if (connects) begin_to_connect();
    CHECK(d.drain(channels[1][1], second).size() == 8);
  }
  void begin_to_connect() {
    d.core.add_source(third.facts);
    attempt = contacts.next(0);
    REQUIRE(attempt.has_value());
    REQUIRE(attempt->slot == 2);
  }
  /// The second lane has nothing else to do.
  [[nodiscard]] bool loses_first() {
    CHECK(d.nothing(channels[1][1]));
    return d.core.is_lost(0);
  }
};

}  // namespace

TEST_CASE("pull contacts: the reads of a lane that connects to another source are not late") {
  waiting_read scene{true};
  scene.d.pass(60ms);
  CHECK(scene.d.core.due(scene.channels[1][1]) == time_point::never());
  CHECK_FALSE(scene.loses_first());
  SUBCASE("connected") {
    static_cast<void>(scene.contacts.made(0, *scene.attempt));
  }
  SUBCASE("not connected") {
    static_cast<void>(scene.contacts.failed(0, *scene.attempt, errc::timed_out, "no answer"));
  }
  CHECK_FALSE(scene.loses_first());  // the lane has not looked yet
  CHECK(scene.d.nothing(scene.channels[0][1]));
  CHECK_FALSE(scene.loses_first());
  scene.d.pass(40ms);
  CHECK_FALSE(scene.loses_first());
  SUBCASE("in time") {
    scene.d.arrive(scene.channels[0][0], scene.chunk);
    scene.d.confirm(scene.channels[0][0], scene.first);
    CHECK(scene.d.core.done());
  }
  SUBCASE("slow all the same") {
    scene.d.pass(20ms);
    CHECK(scene.loses_first());
  }
}

TEST_CASE("pull contacts: the reads of a lane that only waits are late after a while") {
  waiting_read scene{false};
  scene.d.pass(40ms);
  CHECK_FALSE(scene.loses_first());
  scene.d.pass(20ms);
  CHECK(scene.loses_first());
}
