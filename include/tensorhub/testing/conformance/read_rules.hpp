#pragma once
/// \file read_rules.hpp
/// Rules of the transport conformance suite: each posted read completes once, with all bytes (promises 1, 2
/// and 4).

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// Sizes from zero to the largest, from odd offsets to odd offsets: exact contents, and no byte beside them.
template <transport T>
std::vector<std::string> every_size_arrives(conformance_fixture<T>& fixture) {
  findings found;
  for (const bool with_file : fixture.backings()) {
    for (const std::uint64_t bytes :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{63}, std::uint64_t{4096}, std::uint64_t{65'537},
          fixture.largest() - 1, fixture.largest()}) {
      if (bytes > fixture.largest()) continue;
      const std::string when = std::to_string(bytes) + " bytes" + (with_file ? " of a file" : "");
      constexpr std::uint64_t source_offset = 29;
      constexpr std::uint64_t target_offset = 13;
      conformance_scene<T> scene{fixture, bytes + 77, bytes + 55, 4, with_file};
      const auto status =
          scene.reader.read(scene.into(), target_offset, {&scene.remote, source_offset, bytes});
      found.require(status == completion_status::ok, when + ": the read " + describe_status(status));
      found.require(scene.to.holds(target_offset, bytes, scene.from_seed, source_offset),
                    when + ": wrong bytes at the moment of completion");
      found.require(scene.to.untouched_outside(target_offset, bytes),
                    when + ": bytes beside the target changed");
      scene.reader.drain();
      scene.reader.require_each_once(found, when);
      found.require(scene.from.untouched(), when + ": the source's memory changed");
    }
  }
  return found.take();
}

/// A transport with a limit serves reads of that size, and reports larger reads (or serves them too).
template <transport T>
std::vector<std::string> reads_at_the_limit(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t limit = T::capabilities.max_read_bytes;
  if (limit > (64u << 20)) {
    fixture.skip("the largest read is not limited, or too large to be tried");
    return {};
  }
  findings found;
  conformance_scene<T> scene{fixture, limit + 1, limit + 1, 2};
  for (const std::uint64_t bytes : {limit - 1, limit, limit + 1}) {
    const std::string when = std::to_string(bytes) + " bytes, limit " + std::to_string(limit);
    scene.to.fill(scene.to_seed);
    const auto status = scene.read(scene.remote, 0, bytes);
    found.require(status.has_value(), when + ": the read did not complete");
    found.require(bytes > limit || status == completion_status::ok,
                  when + ": the read " + describe_status(status));
    found.require(status != completion_status::ok || scene.to.holds(0, bytes, scene.from_seed, 0),
                  when + ": the read ended ok and brought wrong bytes");
  }
  scene.reader.drain();
  scene.reader.require_each_once(found, "reads at the limit");
  return found.take();
}

/// Many small reads through a queue that is always full: each completes once, its bytes are visible when it
/// completes, and `outstanding` counts correctly.
template <transport T>
std::vector<std::string> many_reads_complete_once(conformance_fixture<T>& fixture) {
  constexpr std::size_t count = 500;
  constexpr std::uint64_t slot_bytes = 3001;
  constexpr std::size_t depth = 16;
  findings found;
  conformance_scene<T> scene{fixture, 4 * slot_bytes, count * slot_bytes, depth};
  struct wanted {
    std::uint64_t source_offset = 0;
    std::uint64_t target_offset = 0;
    std::uint64_t bytes = 0;
  };
  std::map<request_id, wanted> open;
  const auto check = [&](const completion& done) {
    const std::string which = name_of_read(done.id);
    const auto entry = open.find(done.id);
    if (!found.require(entry != open.end(), which + " completed and was not outstanding")) return;
    const wanted read = entry->second;
    open.erase(entry);
    found.require(done.status == completion_status::ok, which + " " + describe_status(done.status));
    found.require(scene.to.holds(read.target_offset, read.bytes, scene.from_seed, read.source_offset),
                  which + ": its bytes are not there at the moment of completion");
  };
  std::size_t posted = 0;
  while (posted < count && !fixture.overdue() && found.empty()) {
    const wanted next{.source_offset = pattern_word(1, posted) % slot_bytes,
                      .target_offset = posted * slot_bytes,
                      .bytes = 1 + pattern_word(2, posted) % (slot_bytes - 1)};
    const std::size_t before = open.size();
    const auto id =
        scene.reader.post(scene.into(), next.target_offset, {&scene.remote, next.source_offset, next.bytes});
    found.require(id.has_value() == (before < depth),
                  "with " + std::to_string(before) + " of " + std::to_string(depth) +
                      " reads outstanding, post_read said " + (id ? "posted" : "queue full"));
    if (id) {
      open[*id] = next;
      ++posted;
    }
    found.require(scene.reader.queue().outstanding() == open.size(),
                  "outstanding() says " + std::to_string(scene.reader.queue().outstanding()) + " of " +
                      std::to_string(open.size()));
    if (open.size() < depth) continue;
    if (scene.reader.take(check) == 0) {
      if (!found.require(scene.reader.queue().outstanding() == open.size(), "reads went away unseen")) break;
      scene.reader.queue().wait(std::chrono::milliseconds{50});
    }
  }
  scene.reader.drain(check);
  scene.reader.require_each_once(found, "500 reads, depth 16");
  return found.take();
}

/// Promise 4: a read that returns `queue_full` is not done; the queue stays usable.
template <transport T>
std::vector<std::string> queue_full_posts_nothing(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t slot_bytes = 1000;
  findings found;
  for (const std::size_t depth : {std::size_t{1}, std::size_t{5}}) {
    const std::string when = "depth " + std::to_string(depth);
    conformance_scene<T> scene{fixture, slot_bytes, (depth + 3) * slot_bytes, depth};
    for (std::size_t i = 0; i < depth + 3; ++i) {
      const auto id = scene.reader.post(scene.into(), i * slot_bytes, {&scene.remote, 0, slot_bytes});
      found.require(id.has_value() == (i < depth), when + ": read number " + std::to_string(i + 1) +
                                                       (id ? " was posted" : " found the queue full"));
    }
    scene.reader.drain();
    scene.reader.require_each_once(found, when);
    found.require(scene.to.untouched_outside(0, depth * slot_bytes),
                  when + ": a read that was not posted brought bytes");
    scene.require_readable(found, scene.remote, when + ", after it was full");
  }
  return found.take();
}

/// Promise 1 for reads that fail, between reads that do not.
template <transport T>
std::vector<std::string> errors_complete_once(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t bytes = 512;
  constexpr std::size_t rounds = 12;
  findings found;
  conformance_scene<T> scene{fixture, bytes, rounds * bytes, 4 * rounds};
  remote_region forged = scene.remote;
  forged.key.bytes[0] ^= std::byte{0x5a};
  std::map<request_id, std::size_t> good;
  for (std::size_t i = 0; i < rounds; ++i) {
    if (const auto id = scene.reader.post(scene.into(), i * bytes, {&scene.remote, 0, bytes})) good[*id] = i;
    static_cast<void>(scene.reader.post(scene.into(), 0, {&forged, 0, 0}));
    static_cast<void>(scene.reader.post(scene.into(), 0, {&scene.remote, bytes + 1, 0}));
    static_cast<void>(scene.reader.post(scene.into(), rounds * bytes, {&scene.remote, 0, 1}));
  }
  scene.reader.drain([&](const completion& done) {
    const auto entry = good.find(done.id);
    if (entry == good.end()) return;
    found.require(done.status == completion_status::ok || (!T::capabilities.survives_access_errors &&
                                                           done.status == completion_status::peer_lost),
                  "a good read between bad ones " + describe_status(done.status));
    found.require(done.status != completion_status::ok ||
                      scene.to.holds(entry->second * bytes, bytes, scene.from_seed, 0),
                  "a good read between bad ones brought wrong bytes");
  });
  scene.reader.require_each_once(found, "good and bad reads mixed");
  return found.take();
}

/// A read that does not fit the local region ends in `local_error` and writes nothing.
template <transport T>
std::vector<std::string> misfit_is_local_error(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 1024, 4};
  const std::array<std::pair<std::uint64_t, std::uint64_t>, 5> cases{
      {{1024, 1}, {1, 1024}, {0, 4096}, {UINT64_MAX - 7, 16}, {UINT64_MAX, 1}}};
  for (const auto& [offset, bytes] : cases) {
    const std::string when =
        std::to_string(bytes) + " bytes to offset " + std::to_string(offset) + " of 1024";
    scene.to.fill(scene.to_seed);
    scene.reconnect_if_broken();
    const auto status = scene.reader.read(scene.into(), offset, {&scene.remote, 0, bytes});
    found.require(status == completion_status::local_error, when + ": the read " + describe_status(status));
    found.require(scene.to.untouched(), when + ": memory changed");
  }
  scene.require_readable(found, scene.remote, "after local errors");
  scene.reader.drain();
  scene.reader.require_each_once(found, "reads that do not fit");
  return found.take();
}

/// `poll` fills at most the span, and loses no completion if the span is small or empty.
template <transport T>
std::vector<std::string> poll_respects_the_span(conformance_fixture<T>& fixture) {
  constexpr std::size_t count = 11;
  findings found;
  conformance_scene<T> scene{fixture, 64, 64 * count, count};
  auto& queue = scene.reader.queue();
  for (std::size_t i = 0; i < count; ++i) {
    found.require(queue.post_read(scene.reader.endpoint(), scene.into(), 64 * i, {&scene.remote, 0, 64},
                                  id_of_read(i)) == post_result::posted,
                  "a queue with room is full");
  }
  std::map<request_id, std::size_t> came;
  for (std::size_t total = 0; total < count && !fixture.overdue();) {
    constexpr completion untouched{request_id{424'242}, completion_status::cut_off};
    std::array<completion, 6> batch{};
    batch.fill(untouched);
    found.require(queue.poll({}) == 0, "poll of an empty span returned something");
    const std::size_t filled = queue.poll(std::span{batch}.first(3));
    if (!found.require(filled <= 3, "poll of 3 returned " + std::to_string(filled))) break;
    for (std::size_t i = filled; i < batch.size(); ++i) {
      found.require(batch[i].id == untouched.id && (i < 3 || batch[i].status == untouched.status),
                    "poll wrote behind the completions that it returned");
    }
    for (std::size_t i = 0; i < filled; ++i) ++came[batch[i].id];
    total += filled;
    if (filled > 0) continue;
    if (queue.outstanding() == 0) break;
    queue.wait(std::chrono::milliseconds{50});
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t times = came[id_of_read(i)];
    found.require(times == 1, name_of_read(id_of_read(i)) + " completed " + std::to_string(times) + " times");
  }
  found.require(came.size() == count, "completions of reads that were not posted");
  return found.take();
}

/// `wait` ends when a read completes, without any other event: a large read, and two small ones, of which the
/// second has no bytes and may arrive together with the first.
template <transport T>
std::vector<std::string> wait_ends_with_a_completion(conformance_fixture<T>& fixture) {
  findings found;
  const std::uint64_t bytes = fixture.largest();
  conformance_scene<T> scene{fixture, bytes, bytes, 2};
  const auto check_wait = [&](std::initializer_list<std::uint64_t> reads) {
    for (const std::uint64_t each : reads)
      found.require(scene.reader.post(scene.into(), 0, {&scene.remote, 0, each}).has_value(),
                    "an empty queue is full");
    if (reads.size() > 1) std::this_thread::sleep_for(std::chrono::milliseconds{3});  // both have arrived
    std::size_t came = 0;
    while (came < reads.size() && scene.reader.queue().outstanding() > 0 && !fixture.overdue()) {
      scene.reader.queue().wait(fixture.left());
      came += scene.reader.take([](const completion&) {});
    }
    return found.require(came == reads.size(), "no completion after wait");
  };
  for (std::size_t round = 0; round < fixture.options().rounds; ++round)
    if (!check_wait({bytes}) || !check_wait({1, 0})) break;
  found.require(!fixture.overdue(), "wait did not end although the read was complete");
  return found.take();
}

/// `wake` ends a wait that has begun, or the next one.
template <transport T>
std::vector<std::string> wake_ends_wait(conformance_fixture<T>& fixture) {
  findings found;
  const auto process = fixture.start();
  auto queue = process->make_queue(1);
  queue.wake();
  queue.wait(fixture.left());
  found.require(!fixture.overdue(), "wait did not end by the wake before it");
  for (std::size_t round = 0; round < fixture.options().rounds && !fixture.overdue(); ++round) {
    std::jthread other{[&queue] {
      std::this_thread::sleep_for(std::chrono::milliseconds{3});
      queue.wake();
    }};
    queue.wait(fixture.left());
  }
  found.require(!fixture.overdue(), "wait did not end by the wake of another thread");
  return found.take();
}

/// Two threads with a queue each read the same source at once.
template <transport T>
std::vector<std::string> queues_of_two_threads(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t slot_bytes = 10'007;
  constexpr std::size_t slots = 8;
  findings found;
  guarded_memory from = fixture.source_memory(slot_bytes * slots);
  from.fill(31);
  std::array<guarded_memory, 2> to{fixture.target_memory(slot_bytes * slots),
                                   fixture.target_memory(slot_bytes * slots)};
  auto source = fixture.start();
  auto target = fixture.start();
  const remote_region remote = source.describe(source.add(from.range(), region_access::remote_read));
  for (const guarded_memory& each : to) target.add(each.range(), region_access::local_write);

  std::array<findings, 2> parts;
  const auto work = [&](std::size_t mine) {
    try {
      conformance_reader<T> reader{fixture, *target, slots, source};
      for (std::size_t round = 0; round < 20 && parts[mine].empty() && !fixture.overdue(); ++round) {
        to[mine].fill(40 + round);
        for (std::size_t slot = 0; slot < slots; ++slot) {
          static_cast<void>(reader.post(target.regions[mine], slot * slot_bytes,
                                        {&remote, ((slot + round) % slots) * slot_bytes, slot_bytes}));
        }
        reader.drain([&](const completion& done) {
          parts[mine].require(done.status == completion_status::ok, "a read " + describe_status(done.status));
        });
        reader.require_each_once(parts[mine], "thread " + std::to_string(mine));
        for (std::size_t slot = 0; slot < slots; ++slot) {
          parts[mine].require(
              to[mine].holds(slot * slot_bytes, slot_bytes, 31, ((slot + round) % slots) * slot_bytes),
              "thread " + std::to_string(mine) + " has wrong bytes");
        }
      }
    } catch (const std::exception& thrown) {
      parts[mine].require(false, std::string{"thrown: "} + thrown.what());
    } catch (...) {
      parts[mine].require(false, thrown_otherwise);
    }
  };
  {
    std::jthread first{work, 0};
    std::jthread second{work, 1};
  }
  for (findings& each : parts) found.add(each.take());
  return found.take();
}

/// The bytes of the first of two reads in `ordered_reads_look_in_order`.
inline constexpr std::uint64_t ordered_chunk_bytes = 40'000;

/// A thread sanitizer reports races that rules make on purpose, where the CPU copies.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool under_thread_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool under_thread_sanitizer = true;
#else
inline constexpr bool under_thread_sanitizer = false;
#endif
#else
inline constexpr bool under_thread_sanitizer = false;
#endif

/// `ordered_read_bytes`: a thread counts in the first word of the memory and then copies the count to all
/// others. A read of the others and one of the first word behind it must not show a later count in the
/// others.
template <transport T>
std::vector<std::string> ordered_reads_look_in_order(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t begin = 64;
  findings found;
  if constexpr (!requires(const typename T::endpoint& e) { e.ordered_read_bytes(); }) {
    fixture.skip("the transport promises no order");
  } else {
    conformance_scene<T> scene{fixture, begin + ordered_chunk_bytes, begin + ordered_chunk_bytes, 2};
    std::string why_not;
    if (scene.reader.endpoint().ordered_read_bytes() < ordered_chunk_bytes)
      why_not = "this endpoint promises no order";
    else if (!scene.from.range().host_accessible() || !scene.to.range().host_accessible())
      why_not = "the CPU cannot access the memory";
    else if (under_thread_sanitizer || !fixture.options().concurrent_overwrites)
      why_not = "concurrent overwrites are switched off";
    if (!why_not.empty()) {
      fixture.skip(why_not);
      return {};
    }
    auto* const words = reinterpret_cast<std::uint64_t*>(scene.from.data());
    for (std::size_t i = 0; i < (begin + ordered_chunk_bytes) / 8; ++i) words[i] = 0;
    const std::jthread writing{[words](const std::stop_token& stop) {
      for (std::uint64_t count = 1; !stop.stop_requested(); ++count) {
        std::atomic_ref{words[0]}.store(count, std::memory_order_release);
        for (std::size_t i = begin / 8; i < (begin + ordered_chunk_bytes) / 8; ++i)
          std::atomic_ref{words[i]}.store(count, std::memory_order_release);
      }
    }};
    const std::size_t reads = 50 * fixture.options().rounds;
    for (std::size_t i = 0; i < reads && found.empty() && !fixture.overdue(); ++i) {
      static_cast<void>(scene.reader.post(scene.into(), begin, {&scene.remote, begin, ordered_chunk_bytes}));
      static_cast<void>(scene.reader.post(scene.into(), 0, {&scene.remote, 0, 8}));
      while (scene.reader.queue().outstanding() > 0 && !fixture.overdue()) {
        if (scene.reader.take([](const completion&) {}) == 0)
          scene.reader.queue().wait(std::chrono::milliseconds{1});
      }
      const auto* const seen = reinterpret_cast<const std::uint64_t*>(scene.to.data());
      const std::uint64_t latest =
          *std::max_element(seen + begin / 8, seen + (begin + ordered_chunk_bytes) / 8);
      found.require(latest <= seen[0], "the first of two reads shows the count " + std::to_string(latest) +
                                           ", and the one behind it " + std::to_string(seen[0]));
    }
    found.require(!fixture.overdue(), "two reads did not complete");
  }
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
