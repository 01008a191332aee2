#pragma once
/// \file key_rules.hpp
/// Rules of the transport conformance suite: which readers may read which memory (promise 3).
///
/// The forbidden memory is always mapped and has a known pattern, so that a transport that reads it does not
/// crash but is detected.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/scene.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules {

/// Reads past the end of the region, also with offsets that overflow.
template <transport T>
std::vector<std::string> out_of_bounds_is_denied(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t bytes = 5000;
  findings found;
  conformance_scene<T> scene{fixture, bytes, 8192, 4};
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> cases{
      {0, bytes + 1}, {bytes, 1},           {bytes - 1, 2},        {bytes + 8, 64},
      {4096, 4096},   {UINT64_MAX - 7, 16}, {UINT64_MAX - 63, 64}, {UINT64_MAX, 1}};
  for (const auto& [offset, count] : cases) {
    const std::string when =
        std::to_string(count) + " bytes at offset " + std::to_string(offset) + " of " + std::to_string(bytes);
    scene.to.fill(scene.to_seed);
    const auto status = scene.read(scene.remote, offset, count);
    found.require(is_denial(status), when + ": the read " + describe_status(status));
    // Bytes after the region (or, after an overflow, before it) must not arrive; bytes inside it may.
    const auto at = static_cast<std::int64_t>(offset);
    const std::uint64_t inside = offset < bytes ? bytes - offset : 0;
    const auto forbidden = scene.from.copy_of(at, count);
    const auto arrived = scene.to.copy_of(0, count);
    bool leaked = false;
    for (std::uint64_t i = inside; i + 8 <= count; ++i) {
      bool all = true;
      for (std::uint64_t k = i; k < i + 8; ++k) all = all && arrived[k] == forbidden[k];
      leaked = leaked || all;
    }
    found.require(!leaked, when + ": bytes from outside of the region arrived");
  }
  scene.require_readable(found, scene.remote, "after reads out of bounds");
  return found.take();
}

/// A reader that changes the base or length in the description of a region that it may read.
template <transport T>
std::vector<std::string> changed_description_is_denied(conformance_fixture<T>& fixture) {
  constexpr std::uint64_t bytes = 4096;
  constexpr std::uint64_t count = 256;
  findings found;
  conformance_scene<T> scene{fixture, bytes, count, 4};
  const auto check = [&](std::uint64_t base, std::uint64_t length, std::uint64_t offset, std::int64_t at,
                         const std::string& when) {
    remote_region changed = scene.remote;
    changed.base = base;
    changed.bytes = length;
    scene.to.fill(scene.to_seed);
    const auto status = scene.read(changed, offset, count);
    found.require(status.has_value(), when + ": the read " + describe_status(status));
    // `ok` is not a fault if the bytes are from the region: a transport need not use `base`.
    found.require(!scene.to.has_bytes_of(count, scene.from_seed, at), when + ": forbidden bytes arrived");
  };
  const std::uint64_t base = scene.remote.base;
  constexpr std::int64_t behind = bytes;
  check(base, bytes + 4096, bytes, behind, "length made larger");
  check(base, UINT64_MAX, bytes, behind, "length made endless");
  check(base, bytes + 4096, bytes + 64, behind + 64, "length made larger, 64 bytes behind");
  check(base + bytes, bytes, 0, behind, "base moved to the end");
  check(base + bytes, bytes + 4096, 0, behind, "base moved to the end, length made larger");
  check(base - 512, bytes, 0, -512, "base moved before the begin");
  check(base - 512, UINT64_MAX, 0, -512, "base moved before the begin, length made endless");
  check(base - 512, UINT64_MAX, UINT64_MAX - 511, -1024, "base and offset overflow");
  scene.require_readable(found, scene.remote, "after changed descriptions");
  return found.take();
}

/// Guessed keys: one bit wrong, random, empty, too long.
template <transport T>
std::vector<std::string> forged_key_is_denied(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  const std::size_t used = scene.remote.key.used_bytes;
  if (!found.require(used > 0 && used <= limits::remote_key_bytes,
                     "a region's key has " + std::to_string(used) + " bytes")) {
    return found.take();
  }
  for (std::size_t i = 0; i < used; ++i) {
    remote_region forged = scene.remote;
    forged.key.bytes[i] ^= static_cast<std::byte>(1u << (i % 8));
    scene.require_denied(found, forged, 0, 512, 0, "one bit of key byte " + std::to_string(i) + " changed");
  }
  for (int round = 0; round < 8; ++round) {
    remote_region forged = scene.remote;
    for (std::size_t i = 0; i < used; ++i) forged.key.bytes[i] = static_cast<std::byte>(fixture.random());
    scene.require_denied(found, forged, 0, 512, 0, "a random key");
  }
  remote_region forged = scene.remote;
  forged.key = {};
  scene.require_denied(found, forged, 0, 512, 0, "no key");
  forged.key.used_bytes = static_cast<std::uint8_t>(used);
  scene.require_denied(found, forged, 0, 512, 0, "a key of zeroes");
  forged.key = scene.remote.key;
  forged.key.used_bytes = static_cast<std::uint8_t>(used - 1);
  scene.require_denied(found, forged, 0, 512, 0, "a key without its last byte");
  scene.require_readable(found, scene.remote, "after forged keys");
  return found.take();
}

/// How many bits take both values in these keys.
[[nodiscard]] inline std::size_t count_changing_bits(const std::vector<remote_key>& keys) {
  std::size_t bits = 0;
  for (std::size_t at = 0; at < limits::remote_key_bytes; ++at) {
    unsigned changing = 0;
    for (const remote_key& each : keys)
      changing |= std::to_integer<unsigned>(each.bytes[at] ^ keys.front().bytes[at]);
    bits += static_cast<std::size_t>(std::popcount(changing));
  }
  return bits;
}

/// Who has one key cannot count to the next one. In 16 keys for the same memory, of registrations and of
/// revokes, 24 bits at least take both values: of counters, and of times, fewer do; of 32 random bits, fewer
/// do not in the life of a fleet. (A checksum beside a counter hides the counter from this rule.)
template <transport T>
std::vector<std::string> keys_are_not_counted(conformance_fixture<T>& fixture) {
  constexpr std::size_t count = 16;
  constexpr std::size_t fewest_bits = 24;
  findings found;
  guarded_memory memory = fixture.source_memory(4096);
  auto source = fixture.start();
  const auto check = [&](const std::vector<remote_key>& keys, const std::string& of) {
    const std::size_t bits = count_changing_bits(keys);
    found.require(bits >= fewest_bits, "in " + std::to_string(keys.size()) + " keys of " + of + " only " +
                                           std::to_string(bits) + " bits change, which can be guessed");
  };
  std::vector<remote_key> keys;
  for (std::size_t i = 0; i < count; ++i)
    keys.push_back(source.describe(source.add(memory.range(), region_access::remote_read)).key);
  check(keys, "registrations");
  keys.clear();
  for (std::size_t i = 0; i < count; ++i) {
    keys.push_back(source.describe(0).key);
    source->revoke(source.regions[0]);
  }
  check(keys, "revokes");
  return found.take();
}

/// A key that is valid for another process gives no access here.
template <transport T>
std::vector<std::string> foreign_key_is_denied(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  guarded_memory other_memory = fixture.source_memory(4096);
  other_memory.fill(33);
  auto other = fixture.start();
  const remote_region foreign = other.describe(other.add(other_memory.range(), region_access::remote_read));
  scene.to.fill(scene.to_seed);
  const auto status = scene.read(foreign, 0, 512);
  found.require(is_denial(status), "another process's key: the read " + describe_status(status));
  found.require(!scene.to.has_bytes_of(512, 33, 0), "another process's key brought that process's bytes");
  remote_region mixed = scene.remote;
  mixed.key = foreign.key;
  scene.require_denied(found, mixed, 0, 512, 0, "another process's key with this process's base");
  scene.require_readable(found, scene.remote, "after a foreign key");
  return found.take();
}

/// `revoke`: old keys stop working, the new key works, and other regions are not affected.
template <transport T>
std::vector<std::string> stale_key_is_denied(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  guarded_memory other_memory = fixture.source_memory(4096);
  other_memory.fill(34);
  const std::size_t other = scene.source.add(other_memory.range(), region_access::remote_read);
  const remote_region bystander = scene.source.describe(other);
  found.require(scene.source.describe(0) == scene.remote, "two calls of describe differ without a revoke");
  scene.require_readable(found, scene.remote, "before revoke");
  std::vector<remote_region> stale{scene.remote};
  for (int round = 1; round <= 3; ++round) {
    const std::string when = "after revoke number " + std::to_string(round);
    scene.source->revoke(scene.source.regions[0]);
    for (const remote_region& each : stale)
      scene.require_denied(found, each, 0, 512, 0, when + ", an old key");
    const remote_region fresh = scene.source.describe(0);
    for (const remote_region& each : stale)
      found.require(!(fresh.key == each.key), when + ": describe gives an old key");
    scene.require_readable(found, fresh, when + ", the new key");
    scene.require_readable(found, bystander, when + ", another region", 34);
    stale.push_back(fresh);
  }
  found.require(scene.source.describe(other) == bystander, "revoke changed another region's description");
  return found.take();
}

/// A deregistered region cannot be read, even when its memory is registered again.
template <transport T>
std::vector<std::string> deregistered_is_denied(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  guarded_memory other_memory = fixture.source_memory(4096);
  other_memory.fill(35);
  scene.source.add(other_memory.range(), region_access::remote_read);
  const remote_region bystander = scene.source.describe(1);
  scene.require_readable(found, scene.remote, "before deregistration");
  scene.source.regions.erase(scene.source.regions.begin());
  scene.require_denied(found, scene.remote, 0, 512, 0, "after deregistration");
  scene.require_readable(found, bystander, "another region", 35);
  const remote_region again =
      scene.source.describe(scene.source.add(scene.from.range(), region_access::remote_read));
  scene.require_denied(found, scene.remote, 0, 512, 0, "registered again, with the first key");
  scene.require_readable(found, again, "registered again, with the new key");
  return found.take();
}

/// Peers cannot read a region for the process's own reads: it has no description, or one without access.
template <transport T>
std::vector<std::string> local_region_is_denied(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  guarded_memory private_memory = fixture.source_memory(4096);
  private_memory.fill(scene.from_seed);
  const std::size_t index = scene.source.add(private_memory.range(), region_access::local_write);
  try {
    const remote_region local = scene.source.describe(index);
    scene.require_denied(found, local, 0, 512, 0, "a region registered with local_write");
  } catch (const error&) {
    // There is no description, so there is nothing to read with.
  }
  scene.require_readable(found, scene.remote, "after reading a local region");
  return found.take();
}

/// If `survives_access_errors` is promised, denied reads end in `access_denied` and the endpoint stays
/// usable. In any case `usable` is correct: reads on a usable endpoint succeed, and reads on any other end in
/// `peer_lost`.
template <transport T>
std::vector<std::string> endpoint_after_access_errors(conformance_fixture<T>& fixture) {
  findings found;
  conformance_scene<T> scene{fixture, 4096, 512, 4};
  remote_region forged = scene.remote;
  forged.key.bytes[0] ^= std::byte{1};
  const std::vector<std::pair<remote_region, std::uint64_t>> bad{
      {forged, 0}, {scene.remote, 4000}, {scene.remote, UINT64_MAX - 3}};
  for (const auto& [what, offset] : bad) {
    const std::string when = "after a denied read at offset " + std::to_string(offset);
    const auto status = scene.reader.read(scene.into(), 0, {&what, offset, 512});
    if constexpr (T::capabilities.survives_access_errors) {
      found.require(status == completion_status::access_denied, "the bad read " + describe_status(status));
      found.require(scene.reader.endpoint().usable(), when + ": the endpoint is not usable");
    }
    const bool usable = scene.reader.endpoint().usable();
    const auto next = scene.reader.read(scene.into(), 0, {&scene.remote, 0, 512});
    found.require(
        next == (usable ? completion_status::ok : completion_status::peer_lost),
        when + " usable() is " + (usable ? "true" : "false") + ", and a good read " + describe_status(next));
    if (!usable) scene.reader.connect(scene.source);
  }
  scene.reader.drain();
  scene.reader.require_each_once(found, "access errors");
  return found.take();
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::conformance_rules
