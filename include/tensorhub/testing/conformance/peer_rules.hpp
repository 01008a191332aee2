#pragma once
/// \file peer_rules.hpp
/// Rules of the transport conformance suite: peers, endpoints and queues that end (promises 1 and 7), and
/// cut-off readers.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/concepts/shared_transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// The outcome of a call of `connect`: empty (it connected), or the error's code.
template <transport T>
std::optional<errc> connect_error(T& from, const transport_address& address, incarnation peer,
                                  duration timeout, incarnation self = {}) {
  try {
    auto queue = from.make_queue(1);
    const auto endpoint = connect_as(self, from, queue, address, peer, timeout);
    return std::nullopt;
  } catch (const error& thrown) {
    return thrown.code();
  }
}

[[nodiscard]] inline std::string describe_error(const std::optional<errc>& code) {
  return code ? "was refused with " + std::string{to_string(*code)} : "succeeded";
}

/// Fills the queue with reads of one slot each; returns how many were posted.
template <transport T>
std::size_t post_slots(conformance_scene<T>& scene, std::uint64_t slot_bytes) {
  std::size_t posted = 0;
  while (posted < scene.reader.depth() &&
         scene.reader.post(scene.into(), posted * slot_bytes, {&scene.remote, 0, slot_bytes})) {
    ++posted;
  }
  return posted;
}

/// The slot of a read of `post_slots` has the source's bytes. (An id that no read has is found by
/// `require_each_once`.)
template <transport T>
bool slot_holds(const conformance_scene<T>& scene, request_id id, std::uint64_t slot_bytes) {
  const auto slot = scene.reader.number_of(id);
  return !slot || scene.to.holds(*slot * slot_bytes, slot_bytes, scene.from_seed, 0);
}

/// Promise 1 if the source dies: every outstanding read ends, and the reads that end `ok` are complete.
template <transport T>
std::vector<std::string> dead_peer_ends_reads(conformance_fixture<T>& fixture) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(fixture.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{fixture, slot_bytes, depth * slot_bytes, depth};
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    const auto address = scene.source->address();
    fixture.kill(scene.source);
    scene.reader.drain([&](const completion& done) {
      found.require(
          done.status != completion_status::cancelled && done.status != completion_status::local_error,
          "the peer died, and a read " + describe_status(done.status));
      found.require(done.status != completion_status::ok || slot_holds(scene, done.id, slot_bytes),
                    "a read of a dying peer ended ok and brought wrong bytes");
    });
    scene.reader.require_each_once(found, "the peer died");
    const auto after = scene.reader.read(scene.into(), 0, {&scene.remote, 0, slot_bytes});
    found.require(after == completion_status::peer_lost,
                  "after the peer's death, a read " + describe_status(after));
    found.require(!scene.reader.endpoint().usable(), "the endpoint to a dead peer calls itself usable");
  }
  return found.take();
}

/// True: a `wake` has ended a wait for reads of a peer that is silent, before they ended by themselves.
template <transport T>
bool wake_ends_wait_for(conformance_fixture<T>& fixture, conformance_scene<T>& scene) {
  scene.reader.queue().wake();
  scene.reader.queue().wait(fixture.left());
  return scene.reader.take([](const completion&) {}) == 0 && !fixture.overdue();
}

/// Promise 1 if the source is stopped and its connections stay open: reads end by themselves, and a wait for
/// them by a `wake` (one of several waits: this thread may stand still for the time-out of the peer).
template <transport T>
std::vector<std::string> silent_peer_ends_reads(conformance_fixture<T>& fixture) {
  findings found;
  if (!fixture.can_stall()) {
    fixture.skip("the subject has no way to stop a process");
    return {};
  }
  constexpr std::size_t depth = 8;
  bool is_woken = false;
  for (int tries = 0; tries < 5 && !is_woken && !fixture.overdue(); ++tries) {
    conformance_scene<T> scene{fixture, 4096, depth * 4096, depth};
    scene.require_readable(found, scene.remote, "before the peer was stopped");
    fixture.stall(scene.source);
    found.require(post_slots(scene, 4096) == depth, "an empty queue does not take its depth");
    is_woken = wake_ends_wait_for(fixture, scene);
    scene.reader.drain([&](const completion& done) {
      found.require(done.status == completion_status::peer_lost,
                    "the peer is silent, and a read " + describe_status(done.status));
    });
    scene.reader.require_each_once(found, "the peer is silent");
    const auto code = connect_error(*scene.target, scene.source->address(), scene.source.self,
                                    std::chrono::milliseconds{50});
    found.require(code == errc::timed_out || code == errc::transport_failed,
                  "connecting to a silent peer " + describe_error(code));
  }
  found.require(is_woken, "a wake does not end a wait for reads of a silent peer, which their end does");
  return found.take();
}

/// Promise 1 if the endpoint is destroyed: the remaining reads are cancelled, once each, and the queue stays
/// usable.
template <transport T>
std::vector<std::string> closed_endpoint_cancels(conformance_fixture<T>& fixture) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(fixture.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{fixture, slot_bytes, depth * slot_bytes, depth};
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    scene.reader.close_endpoint();
    scene.reader.drain([&](const completion& done) {
      found.require(done.status == completion_status::ok || done.status == completion_status::cancelled,
                    "the endpoint was destroyed, and a read " + describe_status(done.status));
      found.require(done.status != completion_status::ok || slot_holds(scene, done.id, slot_bytes),
                    "the endpoint was destroyed, and a read ended ok with wrong bytes");
    });
    scene.reader.require_each_once(found, "the endpoint was destroyed");
    // After this point no late byte of the cancelled reads may arrive.
    scene.to.fill(scene.to_seed);
    scene.reader.connect(scene.source);
    const auto status = scene.reader.read(scene.into(), 0, {&scene.remote, 0, slot_bytes});
    found.require(status == completion_status::ok,
                  "a new endpoint on the same queue: a read " + describe_status(status));
    found.require(scene.to.untouched_outside(0, slot_bytes),
                  "bytes of a cancelled read came after its completion");
  }
  return found.take();
}

/// After a queue is destroyed, none of its reads writes a byte.
template <transport T>
std::vector<std::string> closed_queue_writes_nothing(conformance_fixture<T>& fixture) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(fixture.largest() >> (2 * (round % 4) + 2), 8);
    conformance_scene<T> scene{fixture, slot_bytes, depth * slot_bytes, depth};
    guarded_memory elsewhere = fixture.target_memory(slot_bytes);
    const std::size_t region = scene.target.add(elsewhere.range(), region_access::local_write);
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    scene.reader.close_queue();
    scene.to.fill(scene.to_seed);
    // Allow time and traffic for late bytes: the same two processes, through another queue.
    conformance_reader<T> other{fixture, *scene.target, 1, scene.source};
    for (int i = 0; i < 4; ++i) {
      const auto status = other.read(scene.target.regions[region], 0, {&scene.remote, 0, slot_bytes});
      found.require(status == completion_status::ok,
                    "a read through another queue " + describe_status(status));
    }
    found.require(scene.to.untouched(), "bytes came after the queue was destroyed");
  }
  return found.take();
}

/// Promise 7: `connect` refuses a process with another incarnation, and `peer` returns the connected one.
template <transport T>
std::vector<std::string> other_incarnation_is_refused(conformance_fixture<T>& fixture) {
  findings found;
  auto source = fixture.start();
  auto reader = fixture.start();
  for (const incarnation wrong : {incarnation{source.self.value ^ 2}, reader.self, incarnation{0}}) {
    const auto code = connect_error(*reader, source->address(), wrong, fixture.left());
    found.require(code == errc::transport_failed,
                  "connecting to another incarnation than the one that is there " + describe_error(code));
  }
  auto queue = reader->make_queue(1);
  const auto endpoint = reader->connect(queue, source->address(), source.self, fixture.left());
  found.require(endpoint.peer() == source.self, "peer() is not the incarnation that was connected to");
  found.require(endpoint.usable(), "a new endpoint is not usable");
  return found.take();
}

/// `connect` to an address without a process throws, and does not wait for ever.
template <transport T>
std::vector<std::string> dead_address_is_refused(conformance_fixture<T>& fixture) {
  constexpr std::chrono::milliseconds timeout{500};
  findings found;
  auto reader = fixture.start();
  auto source = fixture.start();
  const auto address = source->address();
  const auto self = source.self;
  found.require(!address.text.empty() && address.text.size() <= limits::address_bytes,
                "the address has " + std::to_string(address.text.size()) + " bytes");
  found.require(!connect_error(*reader, address, self, fixture.left()),
                "a living process cannot be connected to");
  fixture.kill(source);
  const auto code = connect_error(*reader, address, self, timeout);
  found.require(code == errc::transport_failed || code == errc::timed_out,
                "connecting to a process that is gone " + describe_error(code));
  for (const std::string text :
       {"", "nowhere", "://", "nowhere://1", "memory://0", "tcp://", "tcp://127.0.0.1"}) {
    const auto bad = connect_error(*reader, {text}, self, timeout);
    found.require(bad.has_value(), "connecting to '" + text + "' " + describe_error(bad));
  }
  found.require(!fixture.overdue(), "connect outlasted its time-out by far");
  return found.take();
}

/// `cut_off`: that reader's reads end, its endpoint breaks and it cannot connect again; others are not
/// affected.
template <transport T>
std::vector<std::string> cut_off_is_final(conformance_fixture<T>& fixture) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < fixture.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(fixture.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{fixture, slot_bytes, depth * slot_bytes, depth};
    guarded_memory elsewhere = fixture.target_memory(slot_bytes);
    auto bystander = fixture.start();
    bystander.add(elsewhere.range(), region_access::local_write);
    conformance_reader<T> unharmed{fixture, *bystander, 1, scene.source};

    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    scene.source->cut_off(scene.target.self);
    scene.reader.drain();
    scene.reader.require_each_once(found, "the reader was cut off");
    const auto status = scene.reader.read(scene.into(), 0, {&scene.remote, 0, slot_bytes});
    found.require(status.has_value() && status != completion_status::ok,
                  "after cut_off, a read " + describe_status(status));
    found.require(!scene.reader.endpoint().usable(), "after cut_off, the endpoint calls itself usable");
    for (int i = 0; i < 2; ++i) {
      const auto code =
          connect_error(*scene.target, scene.source->address(), scene.source.self, fixture.left());
      found.require(code == errc::transport_failed,
                    "after cut_off, connecting again " + describe_error(code));
    }
    const auto other = unharmed.read(bystander.regions[0], 0, {&scene.remote, 0, slot_bytes});
    found.require(other == completion_status::ok,
                  "another reader was not cut off, and its read " + describe_status(other));
    scene.source->cut_off(scene.target.self);  // once more, and for a reader that never connected
    const auto newcomer = fixture.start();
    scene.source->cut_off(newcomer.self);
    const auto code = connect_error(*newcomer, scene.source->address(), scene.source.self, fixture.left());
    found.require(code == errc::transport_failed,
                  "cut off before its first connection, a reader's connect " + describe_error(code));
  }
  return found.take();
}

/// One process is as many as it has admitted, to its readers and to its sources
/// (concepts/shared_transport.hpp).
template <transport T>
std::vector<std::string> one_process_is_several(conformance_fixture<T>& fixture) {
  findings found;
  if constexpr (shared_transport<T>) {
    auto source = fixture.start();
    auto reader = fixture.start();
    const incarnation second = fixture.new_incarnation();
    const auto connecting = [&](incarnation to, incarnation as) {
      return connect_error(*reader, source->address(), to, fixture.left(), as);
    };
    found.require(connecting(second, reader.self) == errc::transport_failed,
                  "an incarnation that was not admitted can be connected to");
    source->admit(second);
    for (const incarnation each : {source.self, second}) {
      const auto code = connecting(each, reader.self);
      found.require(!code, "after admit, connecting to one of two incarnations " + describe_error(code));
    }
    const incarnation other_reader = fixture.new_incarnation();
    reader->admit(other_reader);
    source->cut_off(reader.self);
    const auto barred = connecting(second, reader.self);
    found.require(barred == errc::transport_failed,
                  "one of two readers of a process was cut off, and its connect " + describe_error(barred));
    const auto free = connecting(second, other_reader);
    found.require(!free, "one of two readers of a process was cut off, and the other one's connect " +
                             describe_error(free));
    source->dismiss(second);
    const auto gone = connecting(second, other_reader);
    found.require(gone == errc::transport_failed,
                  "after dismiss, connecting to that incarnation " + describe_error(gone));
    const auto left = connecting(source.self, other_reader);
    found.require(!left, "after dismiss, connecting to the other incarnation " + describe_error(left));
  } else {
    fixture.skip("the transport is not shared");
  }
  return found.take();
}

/// `rename` (concepts/shared_transport.hpp): the process is another one to its readers and to its sources.
template <transport T>
std::vector<std::string> renamed_process_is_another(conformance_fixture<T>& fixture) {
  findings found;
  if constexpr (shared_transport<T>) {
    auto source = fixture.start();
    auto reader = fixture.start();
    const auto connecting = [&](incarnation to) {
      return connect_error(*reader, source->address(), to, fixture.left());
    };
    const incarnation before = source.self;
    found.require(!connecting(before), "a living process cannot be connected to");
    source.self = fixture.new_incarnation();
    source->rename(before, source.self);
    const auto old_name = connecting(before);
    found.require(old_name == errc::transport_failed,
                  "after rename, connecting to the earlier incarnation " + describe_error(old_name));
    const auto new_name = connecting(source.self);
    found.require(!new_name, "after rename, connecting to the new incarnation " + describe_error(new_name));

    source->cut_off(reader.self);
    const incarnation reader_before = std::exchange(reader.self, fixture.new_incarnation());
    reader->rename(reader_before, reader.self);
    const auto again = connecting(source.self);
    found.require(!again,
                  "a reader that was cut off, and renamed, was not let in: it " + describe_error(again));
    source->cut_off(reader.self);
    const auto cut_off = connecting(source.self);
    found.require(
        cut_off == errc::transport_failed,
        "a renamed reader's new incarnation was cut off, and connecting again " + describe_error(cut_off));
    const incarnation source_before = std::exchange(source.self, fixture.new_incarnation());
    source->rename(source_before, source.self);
    const auto still = connecting(source.self);
    found.require(
        still == errc::transport_failed,
        "a source that was renamed has forgotten whom it had cut off: connecting " + describe_error(still));
  } else {
    fixture.skip("the transport is not shared");
  }
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
