#pragma once
/// \file scene.hpp
/// The environment of most rules of the transport conformance suite: one source and one reader.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/testing/conformance/fixture.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// A source that has registered all of `from` (pattern `from_seed`), and a process that has registered all of
/// `to` (pattern `to_seed`) and reads through one queue and one endpoint.
template <transport T>
struct conformance_scene {
  static constexpr std::uint64_t from_seed = 11;
  static constexpr std::uint64_t to_seed = 22;

  guarded_memory from;  // memory first: it is destroyed last
  guarded_memory to;
  typename conformance_fixture<T>::process source;
  typename conformance_fixture<T>::process target;
  remote_region remote;
  conformance_reader<T> reader;

  conformance_scene(conformance_fixture<T>& fixture, std::uint64_t from_bytes, std::uint64_t to_bytes,
                    std::size_t depth, bool with_file = false)
      : from(fixture.source_memory(from_bytes, with_file)),
        to(fixture.target_memory(to_bytes)),
        source{fixture.start()},
        target{fixture.start()},
        remote{publish()},
        reader{fixture, *target, depth, source} {
    to.fill(to_seed);
    target.add(to.range(), region_access::local_write);
  }

  [[nodiscard]] const typename T::memory_region& into() const { return target.regions.front(); }

  /// One read of the given slice to the start of the target. If an earlier error broke the endpoint, a new
  /// one is made.
  [[nodiscard]] std::optional<completion_status> read(const remote_region& what, std::uint64_t offset,
                                                      std::uint64_t bytes) {
    reconnect_if_broken();
    return reader.read(into(), 0, {&what, offset, bytes});
  }
  void reconnect_if_broken() {
    if (!reader.endpoint().usable()) reader.connect(source);
  }

  /// Checks that a read of the first bytes of `what`, whose memory has pattern `seed`, ends `ok` with those
  /// bytes.
  void require_readable(findings& found, const remote_region& what, const std::string& when,
                        std::uint64_t seed = from_seed) {
    to.fill(to_seed);
    const std::uint64_t bytes = std::min<std::uint64_t>(what.bytes, 64);
    const auto status = read(what, 0, bytes);
    found.require(status == completion_status::ok, when + ": a good read " + describe_status(status));
    if (status == completion_status::ok) {
      found.require(to.holds(0, bytes, seed, 0), when + ": a good read brought wrong bytes");
    }
  }

  /// Promise 3: checks that a read of this slice is denied and delivers no byte of the memory that it names.
  /// `at` is the position in `from` of its first byte (negative: in the margin before it).
  void require_denied(findings& found, const remote_region& what, std::uint64_t offset, std::uint64_t bytes,
                      std::int64_t at, const std::string& when) {
    to.fill(to_seed);
    const auto status = read(what, offset, bytes);
    found.require(is_denial(status), when + ": the read " + describe_status(status));
    found.require(!to.has_bytes_of(std::min(bytes, to.bytes()), from_seed, at),
                  when + ": bytes of the forbidden memory arrived");
    found.require(to.untouched_outside(0, std::min(bytes, to.bytes())),
                  when + ": bytes outside of the target changed");
  }

 private:
  [[nodiscard]] remote_region publish() {
    from.fill(from_seed);
    return source.describe(source.add(from.range(), region_access::remote_read));
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
