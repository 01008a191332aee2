/// \file errors.cpp
/// Which errors may pass, and calls that are repeated while they do.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <tensorhub/error.hpp>
#include <tensorhub/types/element.hpp>
#include <tensorhub/worker/repeated.hpp>
#include <type_traits>
#include <vector>

using namespace std::chrono_literals;
using tensorhub::errc;
using tensorhub::error;

namespace {

constexpr std::array retryable_codes{errc::unavailable, errc::timed_out,    errc::busy,
                                     errc::torn,        errc::group_failed, errc::contract_broken,
                                     errc::corrupt,     errc::source_lost,  errc::disconnected};

/// A caller that nobody interrupts.
struct undisturbed {
  [[nodiscard]] static std::uint64_t interrupts() noexcept { return 0; }
};

/// How often `repeated` calls what fails with these codes, one after the other, and then succeeds; negative:
/// it threw.
int calls_of(const std::vector<errc>& codes, std::chrono::milliseconds timeout = 20s) {
  std::size_t calls = 0;
  try {
    return tensorhub::detail::repeated({}, timeout, undisturbed{}, [&](std::chrono::milliseconds) {
      if (calls++ < codes.size()) throw error(codes[calls - 1], "planted");
      return static_cast<int>(calls);
    });
  } catch (const error& e) {
    CHECK(e.sentence() == "planted");
    return -static_cast<int>(calls);
  }
}

/// Of the types that C++ knows nothing about.
struct half {
  std::uint16_t bits;
};

}  // namespace

template <>
struct tensorhub::element_type<half> {
  static constexpr tensorhub::dtype value = tensorhub::dtype::f16;
};

TEST_CASE("errors: which of them may pass") {
  for (std::uint16_t code = 0; tensorhub::to_string(static_cast<errc>(code)) != "unknown"; ++code) {
    const auto each = static_cast<errc>(code);
    CAPTURE(tensorhub::to_string(each));
    const bool expected = std::ranges::find(retryable_codes, each) != retryable_codes.end();
    CHECK(tensorhub::retryable(each) == expected);
    CHECK(error{each, "x"}.retryable() == expected);
  }
}

TEST_CASE("errors: a call is repeated while it fails for reasons that may pass") {
  CHECK(calls_of({}) == 1);
  CHECK(calls_of({errc::source_lost, errc::torn, errc::disconnected}) == 4);
  CHECK(calls_of({errc::layout_mismatch}) == -1);
  CHECK(calls_of({errc::busy, errc::cancelled}) == -2);
  CHECK(calls_of({errc::busy}, 0ms) == -1);
  CHECK(calls_of(std::vector<errc>(100, errc::unavailable), 100ms) < -1);
}

TEST_CASE("errors: what is left of the time is what each call gets") {
  std::chrono::milliseconds before = 10s;
  const int calls = tensorhub::detail::repeated({}, 10s, undisturbed{},
                                                [&, count = 0](std::chrono::milliseconds left) mutable {
                                                  CHECK(left <= before);
                                                  before = left;
                                                  if (++count < 3) throw error(errc::busy, "planted");
                                                  return count;
                                                });
  CHECK(calls == 3);
  CHECK(before < 10s);
}

TEST_CASE("errors: a call is not repeated after an interrupt") {
  struct {
    std::uint64_t count = 0;
    [[nodiscard]] std::uint64_t interrupts() const noexcept { return count; }
  } caller;
  int calls = 0;
  const auto fail = [&](std::chrono::milliseconds) -> int {
    if (++calls == 3) ++caller.count;
    throw error(errc::busy, "planted");
  };
  try {
    tensorhub::detail::repeated({}, 10s, caller, fail);
    FAIL("it has succeeded");
  } catch (const error& e) {
    CHECK(e.code() == errc::cancelled);
  }
  CHECK(calls == 3);
}

TEST_CASE("errors: one of several shards does not repeat alone") {
  tensorhub::worker_options who;
  who.model = "policy";
  who.shard = {1, 2};
  try {
    tensorhub::detail::repeated(who, 1s, undisturbed{}, [](std::chrono::milliseconds) { return 0; });
    FAIL("it was called");
  } catch (const error& e) {
    CHECK(e.code() == errc::invalid_argument);
    CHECK(e.context().model == "policy");
    CHECK(e.context().shard == 1);
  }
}

TEST_CASE("elements: what can be added, and what can be written") {
  using tensorhub::elements;
  using tensorhub::writable_elements;
  static_assert(elements<std::vector<float>&> && writable_elements<std::vector<float>&>);
  static_assert(elements<const std::vector<float>&> && !writable_elements<const std::vector<float>&>);
  static_assert(!elements<std::vector<float>>);  // a temporary
  static_assert(elements<std::span<const half>> && !writable_elements<std::span<const half>>);
  static_assert(writable_elements<std::array<bool, 2>&>);
  static_assert(!elements<std::vector<bool>&>);
  static_assert(!elements<std::vector<std::string>&>);
  CHECK(tensorhub::element_type<half>::value == tensorhub::dtype::f16);
  CHECK(tensorhub::element_type<std::uint64_t>::value == tensorhub::dtype::u64);
}
