#pragma once
/// \file peer_rules.hpp
/// Rules of the transport conformance suite: peers, endpoints and queues that go away (promises 1 and 7), and
/// readers that are cut off.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// How a call of `connect` ended: nothing (it connected), or the error's code.
template <transport T>
std::optional<errc> connect_error(T& from, const transport_address& address, incarnation peer,
                                  duration timeout) {
  try {
    auto queue = from.make_queue(1);
    const auto endpoint = from.connect(queue, address, peer, timeout);
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

/// Promise 1 when the source dies: every outstanding read ends, and what ended ok is whole.
template <transport T>
std::vector<std::string> dead_peer_ends_reads(conformance_fixture<T>& about) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < about.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(about.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{about, slot_bytes, depth * slot_bytes, depth};
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    const auto address = scene.source->address();
    about.kill(scene.source);
    scene.reader.drain([&](const completion& done) {
      found.require(
          done.status != completion_status::cancelled && done.status != completion_status::local_error,
          "the peer died, and a read " + describe_status(done.status));
      const std::uint64_t slot = done.id - scene.reader.first_id;
      found.require(done.status != completion_status::ok ||
                        scene.to.holds(slot * slot_bytes, slot_bytes, scene.from_seed, 0),
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

/// Promise 1 when the source is stopped but its connections stay.
template <transport T>
std::vector<std::string> silent_peer_ends_reads(conformance_fixture<T>& about) {
  findings found;
  if (!about.can_stall()) {
    about.skip("the subject has no way to stop a process");
    return {};
  }
  constexpr std::size_t depth = 8;
  conformance_scene<T> scene{about, 4096, depth * 4096, depth};
  scene.require_readable(found, scene.remote, "before the peer was stopped");
  about.stall(scene.source);
  found.require(post_slots(scene, 4096) == depth, "an empty queue does not take its depth");
  scene.reader.drain([&](const completion& done) {
    found.require(done.status == completion_status::peer_lost,
                  "the peer is silent, and a read " + describe_status(done.status));
  });
  scene.reader.require_each_once(found, "the peer is silent");
  const auto code =
      connect_error(*scene.target, scene.source->address(), scene.source.self, std::chrono::milliseconds{50});
  found.require(code == errc::timed_out || code == errc::transport_failed,
                "connecting to a silent peer " + describe_error(code));
  return found.take();
}

/// Promise 1 when the endpoint is destroyed: the rest is cancelled, once each, and the queue is good for
/// more.
template <transport T>
std::vector<std::string> closed_endpoint_cancels(conformance_fixture<T>& about) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < about.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(about.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{about, slot_bytes, depth * slot_bytes, depth};
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    scene.reader.close_endpoint();
    scene.reader.drain([&](const completion& done) {
      found.require(done.status == completion_status::ok || done.status == completion_status::cancelled,
                    "the endpoint was destroyed, and a read " + describe_status(done.status));
      found.require(
          done.status != completion_status::ok ||
              scene.to.holds((done.id - scene.reader.first_id) * slot_bytes, slot_bytes, scene.from_seed, 0),
          "the endpoint was destroyed, and a read ended ok with wrong bytes");
    });
    scene.reader.require_each_once(found, "the endpoint was destroyed");
    // From here on no late byte of the cancelled reads may come.
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

/// After the queue's destruction nothing is written any more.
template <transport T>
std::vector<std::string> closed_queue_writes_nothing(conformance_fixture<T>& about) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < about.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(about.largest() >> (2 * (round % 4) + 2), 8);
    conformance_scene<T> scene{about, slot_bytes, depth * slot_bytes, depth};
    guarded_memory elsewhere = about.target_memory(slot_bytes);
    const std::size_t region = scene.target.add(elsewhere.range(), region_access::local_write);
    found.require(post_slots(scene, slot_bytes) == depth, "an empty queue does not take its depth");
    if (round % 2 == 1) static_cast<void>(scene.reader.take([](const completion&) {}));
    scene.reader.close_queue();
    scene.to.fill(scene.to_seed);
    // Time and traffic for late bytes: the same two processes, through another queue.
    conformance_reader<T> other{about, *scene.target, 1, scene.source};
    for (int i = 0; i < 4; ++i) {
      const auto status = other.read(scene.target.regions[region], 0, {&scene.remote, 0, slot_bytes});
      found.require(status == completion_status::ok,
                    "a read through another queue " + describe_status(status));
    }
    found.require(scene.to.untouched(), "bytes came after the queue was destroyed");
  }
  return found.take();
}

/// Promise 7: who is not expected is not connected to; and `peer` says whom one reads.
template <transport T>
std::vector<std::string> other_incarnation_is_refused(conformance_fixture<T>& about) {
  findings found;
  auto source = about.start();
  auto reader = about.start();
  for (const incarnation wrong : {incarnation{source.self.value ^ 2}, reader.self, incarnation{0}}) {
    const auto code = connect_error(*reader, source->address(), wrong, about.left());
    found.require(code == errc::transport_failed,
                  "connecting to another incarnation than the one that is there " + describe_error(code));
  }
  auto queue = reader->make_queue(1);
  const auto endpoint = reader->connect(queue, source->address(), source.self, about.left());
  found.require(endpoint.peer() == source.self, "peer() is not the incarnation that was connected to");
  found.require(endpoint.usable(), "a new endpoint is not usable");
  return found.take();
}

/// `connect` to nobody throws, and does not wait for ever.
template <transport T>
std::vector<std::string> dead_address_is_refused(conformance_fixture<T>& about) {
  constexpr std::chrono::milliseconds timeout{500};
  findings found;
  auto reader = about.start();
  auto source = about.start();
  const auto address = source->address();
  const auto self = source.self;
  found.require(!address.text.empty() && address.text.size() <= limits::address_bytes,
                "the address has " + std::to_string(address.text.size()) + " bytes");
  found.require(!connect_error(*reader, address, self, about.left()),
                "a living process cannot be connected to");
  about.kill(source);
  const auto code = connect_error(*reader, address, self, timeout);
  found.require(code == errc::transport_failed || code == errc::timed_out,
                "connecting to a process that is gone " + describe_error(code));
  for (const std::string text :
       {"", "nowhere", "://", "nowhere://1", "memory://0", "tcp://", "tcp://127.0.0.1"}) {
    const auto bad = connect_error(*reader, {text}, self, timeout);
    found.require(bad.has_value(), "connecting to '" + text + "' " + describe_error(bad));
  }
  found.require(!about.overdue(), "connect outlasted its time-out by far");
  return found.take();
}

/// `cut_off`: that reader's reads end, its endpoint is dead, it is not let in again; others do not notice.
template <transport T>
std::vector<std::string> cut_off_is_final(conformance_fixture<T>& about) {
  constexpr std::size_t depth = 16;
  findings found;
  for (std::size_t round = 0; round < about.options().rounds; ++round) {
    const std::uint64_t slot_bytes = std::max<std::uint64_t>(about.largest() >> (2 * (round % 4) + 2), 1);
    conformance_scene<T> scene{about, slot_bytes, depth * slot_bytes, depth};
    guarded_memory elsewhere = about.target_memory(slot_bytes);
    auto bystander = about.start();
    bystander.add(elsewhere.range(), region_access::local_write);
    conformance_reader<T> unharmed{about, *bystander, 1, scene.source};

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
          connect_error(*scene.target, scene.source->address(), scene.source.self, about.left());
      found.require(code == errc::transport_failed,
                    "after cut_off, connecting again " + describe_error(code));
    }
    const auto other = unharmed.read(bystander.regions[0], 0, {&scene.remote, 0, slot_bytes});
    found.require(other == completion_status::ok,
                  "another reader was not cut off, and its read " + describe_status(other));
    scene.source->cut_off(scene.target.self);  // again, and before it ever came
    const auto newcomer = about.start();
    scene.source->cut_off(newcomer.self);
    const auto code = connect_error(*newcomer, scene.source->address(), scene.source.self, about.left());
    found.require(code == errc::transport_failed,
                  "cut off before its first connection, a reader's connect " + describe_error(code));
  }
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
