#pragma once
/// \file source_rules.hpp
/// Rules of the transport conformance suite: registration (promise 6), and bytes that change after their
/// permission has ended (promise 5).

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// The sentence has this number, and not only its digits in a longer one.
[[nodiscard]] inline bool names_number(const std::string& sentence, std::size_t number) {
  const std::string digits = std::to_string(number);
  const auto is_digit = [&](std::size_t at) {
    return at < sentence.size() && sentence[at] >= '0' && sentence[at] <= '9';
  };
  for (auto at = sentence.find(digits); at != std::string::npos; at = sentence.find(digits, at + 1))
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + digits.size())) return true;
  return false;
}

/// One bad range among good ones: no range is registered, and the error names the bad one.
template <transport T>
std::vector<std::string> registration_is_all_or_nothing(conformance_fixture<T>& fixture) {
  constexpr std::size_t count = 9;
  constexpr std::uint64_t bytes = 256;
  findings found;
  guarded_memory memory = fixture.source_memory(count * bytes);
  auto process = fixture.start();
  process.add(memory.range(0, bytes));
  const std::uint64_t before = process->registered_bytes();
  for (const bool null : {false, true}) {
    for (const std::size_t bad : {std::size_t{0}, std::size_t{5}, count - 1}) {
      const std::string when = "range " + std::to_string(bad) + (null ? " null" : " empty");
      std::vector<memory_range> ranges;
      for (std::size_t i = 0; i < count; ++i) ranges.push_back(memory.range(i * bytes, bytes));
      if (null) {
        ranges[bad].data = nullptr;
      } else {
        ranges[bad].bytes = 0;
      }
      try {
        const auto regions = process->register_memory(ranges, region_access::both);
        found.require(false, when + ": register_memory did not throw");
      } catch (const error& thrown) {
        found.require(null || thrown.code() == errc::invalid_argument,
                      when + ": the error is " + std::string{to_string(thrown.code())});
        found.require(names_number(thrown.sentence(), bad),
                      when + ": the error does not name the range: " + thrown.sentence());
      }
      found.require(process->registered_bytes() == before,
                    when + ": " + std::to_string(process->registered_bytes()) +
                        " bytes are registered after the failure, " + std::to_string(before) + " before it");
    }
  }
  std::vector<memory_range> good;
  for (std::size_t i = 0; i < count; ++i) good.push_back(memory.range(i * bytes, bytes));
  const auto regions = process->register_memory(good, region_access::both);
  found.require(regions.size() == count, "one region per range: " + std::to_string(regions.size()));
  found.require(process->register_memory({}, region_access::both).empty(), "no range, but a region");
  return found.take();
}

/// `registered_bytes` is the sum over live regions, through moves and revokes; `range` is the registered
/// memory.
template <transport T>
std::vector<std::string> registered_bytes_add_up(conformance_fixture<T>& fixture) {
  findings found;
  guarded_memory memory = fixture.source_memory(10'000);
  auto process = fixture.start();
  const auto expect = [&](std::uint64_t bytes, const std::string& when) {
    found.require(process->registered_bytes() == bytes, when + ": registered_bytes() is " +
                                                            std::to_string(process->registered_bytes()) +
                                                            " instead of " + std::to_string(bytes));
  };
  expect(0, "at first");
  {
    const std::vector<memory_range> ranges{memory.range(0, 1000), memory.range(500, 3000),
                                           memory.range(9999, 1)};
    auto regions = process->register_memory(ranges, region_access::both);
    expect(4001, "three regions, two of them overlapping");
    for (std::size_t i = 0; i < ranges.size() && i < regions.size(); ++i) {
      const memory_range got = std::as_const(regions[i]).range();
      found.require(got.data == ranges[i].data && got.bytes == ranges[i].bytes,
                    "range() of region " + std::to_string(i) + " is not what was registered");
    }
    if (!found.empty()) return found.take();
    auto moved = std::move(regions[1]);
    expect(4001, "a region moved");
    found.require(moved.range().bytes == 3000, "a moved region forgot its range");
    moved = std::move(regions[0]);
    expect(1001, "a region assigned over another, which is deregistered");
    process->revoke(moved);
    expect(1001, "after revoke");
  }
  expect(0, "all regions destroyed");
  for (int round = 0; round < 20; ++round) process.add(memory.range());
  expect(200'000, "the same memory twenty times");
  process.regions.clear();
  expect(0, "at last");
  return found.take();
}

/// The ways in which a source ends a reader's permission.
enum class permission_end { deregister, revoke, cut_off };

[[nodiscard]] constexpr std::string_view to_string(permission_end ending) noexcept {
  switch (ending) {
    case permission_end::deregister:
      return "deregistration";
    case permission_end::revoke:
      return "revoke";
    case permission_end::cut_off:
      return "cut_off";
  }
  return "?";
}

/// A source with data that it will overwrite, and a control word in a separate region that stays readable. A
/// pull reads such a word after the data (transfer/control_block.hpp).
template <transport T>
struct overwrite_scene : conformance_scene<T> {
  static constexpr std::uint64_t later_seed = 77;
  static constexpr std::size_t slots = 8;
  std::uint64_t slot_bytes;
  guarded_memory control_memory;
  guarded_memory control_target;
  remote_region control;

  overwrite_scene(conformance_fixture<T>& fixture, std::uint64_t bytes_of_a_slot, bool with_file)
      : conformance_scene<T>{fixture, slots * bytes_of_a_slot, slots * bytes_of_a_slot, slots, with_file},
        slot_bytes{bytes_of_a_slot},
        control_memory(fixture.source_memory(64)),
        control_target(fixture.target_memory(64)),
        control{this->source.describe(this->source.add(control_memory.range(), region_access::remote_read))} {
    this->target.add(control_target.range(), region_access::local_write);
  }
  ~overwrite_scene() {
    this->reader.close_queue();  // regions of this part's memory end before the memory
    this->source.regions.clear();
    this->target.regions.clear();
  }
  overwrite_scene(const overwrite_scene&) = delete;
  overwrite_scene& operator=(const overwrite_scene&) = delete;

  void post_all() {
    for (std::size_t i = 0; i < slots; ++i) {
      static_cast<void>(
          this->reader.post(this->into(), i * slot_bytes, {&this->remote, i * slot_bytes, slot_bytes}));
    }
  }
  [[nodiscard]] bool is_as_before(request_id id) const {
    const auto number = this->reader.number_of(id);  // `require_each_once` finds an id that no read has
    const std::uint64_t offset = number.value_or(0) % (slots + 1) * slot_bytes;
    return !number || this->to.holds(offset, slot_bytes, this->from_seed, offset);
  }
  /// The check of the control word, posted after all other reads have completed.
  [[nodiscard]] std::optional<completion_status> read_control() {
    return this->reader.read(this->target.regions[1], 0, {&control, 0, 64});
  }
  void end_permission(permission_end ending) {
    switch (ending) {
      case permission_end::deregister: {
        const auto gone = std::move(this->source.regions[0]);
        return;
      }
      case permission_end::revoke:
        return this->source->revoke(this->source.regions[0]);
      case permission_end::cut_off:
        return this->source->cut_off(this->target.self);
    }
  }
  /// Promise 5, both forms, for reads that have all completed. `late`: one of them ended ok with bytes that
  /// changed after the permission had ended.
  void require_promise(findings& found, bool late, const std::string& when) {
    if constexpr (!T::capabilities.sends_by_reference) {
      found.require(!late, when + ": a read ended ok with bytes that were written after the return");
    } else if (late) {
      const auto status = read_control();
      found.require(status != completion_status::ok,
                    when +
                        ": a read ended ok with bytes that were written after the return, and the control "
                        "read after it ended ok too");
    }
  }
};

/// Promise 5, step by step: reads are outstanding, the permission ends, the memory changes, the reads
/// complete.
template <transport T>
std::vector<std::string> no_later_bytes(conformance_fixture<T>& fixture) {
  findings found;
  for (const bool with_file : fixture.backings()) {
    for (const permission_end ending :
         {permission_end::deregister, permission_end::revoke, permission_end::cut_off}) {
      for (std::size_t round = 0; round < fixture.options().rounds && found.empty(); ++round) {
        const std::string when = std::string{to_string(ending)} + (with_file ? " of memory with a file" : "");
        const std::uint64_t slot_bytes =
            std::max<std::uint64_t>((fixture.largest() / 4) >> (2 * (round % 4)), 8);
        overwrite_scene<T> scene{fixture, slot_bytes, with_file};
        bool late = false;
        const auto check = [&](const completion& done) {
          late = late || (done.status == completion_status::ok && !scene.is_as_before(done.id));
        };
        scene.post_all();
        for (std::size_t i = 0; i < round % 3; ++i) static_cast<void>(scene.reader.take(check));
        scene.end_permission(ending);
        scene.from.fill(scene.later_seed);
        scene.reader.drain(check);
        scene.reader.require_each_once(found, when);
        scene.require_promise(found, late, when);
        const auto status = scene.reader.read(scene.into(), 0, {&scene.remote, 0, slot_bytes});
        found.require(status.has_value() && status != completion_status::ok,
                      "a read after " + when + " " + describe_status(status));
      }
    }
  }
  return found.take();
}

/// Promise 5 with a reader that reads continuously while another thread ends its permission and overwrites.
template <transport T>
std::vector<std::string> no_later_bytes_while_reading(conformance_fixture<T>& fixture) {
  if (!fixture.options().concurrent_overwrites) {
    fixture.skip("concurrent overwrites are switched off");
    return {};
  }
  findings found;
  for (const bool with_file : fixture.backings()) {
    for (const permission_end ending :
         {permission_end::deregister, permission_end::revoke, permission_end::cut_off}) {
      for (std::size_t round = 0; round < fixture.options().rounds && found.empty(); ++round) {
        const std::string when =
            std::string{to_string(ending)} + (with_file ? " of memory with a file" : "") + ", while reading";
        overwrite_scene<T> scene{fixture, std::max<std::uint64_t>((fixture.largest() / 16) >> (round % 3), 8),
                                 with_file};
        std::atomic<std::size_t> sweeps{0};
        std::atomic<bool> stopped{false};
        findings seen;
        {
          std::jthread reading{[&] {
            try {
              for (bool denied = false; !denied && !fixture.overdue() && seen.empty(); ++sweeps) {
                bool late = false;
                std::size_t came = 0;
                scene.post_all();
                scene.reader.drain([&](const completion& done) {
                  ++came;
                  denied = denied || done.status != completion_status::ok;
                  late = late || (done.status == completion_status::ok && !scene.is_as_before(done.id));
                });
                seen.require(came == scene.slots, when + ": " + std::to_string(came) + " of " +
                                                      std::to_string(scene.slots) + " reads completed");
                scene.require_promise(seen, late, when);
                if (!late) static_cast<void>(scene.read_control());
              }
            } catch (const std::exception& thrown) {
              seen.require(false, when + ": thrown: " + thrown.what());
            } catch (...) {
              seen.require(false, when + ": " + thrown_otherwise);
            }
            stopped = true;
          }};
          while (sweeps < 1 + round && !stopped && !fixture.overdue()) std::this_thread::yield();
          // At an arbitrary point of a sweep.
          for (std::size_t i = 0; i < round % 4; ++i)
            std::this_thread::sleep_for(std::chrono::microseconds{50});
          scene.end_permission(ending);
          scene.from.fill(scene.later_seed);
        }
        found.add(seen.take());
        found.require(!fixture.overdue(), when + ": reads still end ok");
        scene.reader.require_each_once(found, when);
      }
    }
  }
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
