/// \file codec_fuzz.cpp
/// Seeded mutations of every message type. The same seed gives the same frames everywhere; more rounds per
/// type: TENSORHUB_CODEC_FUZZ_ROUNDS.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "codec_check.hpp"

namespace {

using namespace tensorhub;
using namespace codec_check;
using message_samples::filler;

int rounds() {
  const char* const asked = std::getenv("TENSORHUB_CODEC_FUZZ_ROUNDS");
  return asked != nullptr ? std::max(1, std::atoi(asked)) : 1000;
}

class mutator {
 public:
  explicit mutator(std::uint64_t seed) : random_{seed}, filler_{seed + 1} {}

  [[nodiscard]] std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_() % limit); }
  [[nodiscard]] bytes sample(std::size_t type) { return copy(out_.encode(filler_.sample(type))); }

  void flip_bits(bytes& frame) {
    for (std::size_t n = 1 + below(8); n > 0; --n) {
      frame[below(frame.size())] ^= static_cast<std::byte>(1u << below(8));
    }
  }
  void truncate(bytes& frame) { frame.resize(below(frame.size())); }
  void extend(bytes& frame) {
    for (std::size_t n = 1 + below(64); n > 0; --n) frame.push_back(any_byte());
  }
  void overwrite(bytes& frame) {
    const std::size_t at = below(frame.size());
    const std::size_t end = std::min(frame.size(), at + 1 + below(16));
    for (std::size_t i = at; i < end; ++i) frame[i] = any_byte();
  }
  /// Any eight bytes may be a count. What is put there lies by little, by much, or by all there is.
  void lie(bytes& frame) {
    if (frame.size() < header_bytes + 9) return;
    const std::size_t at = header_bytes + 1 + below(frame.size() - header_bytes - 8);
    const std::uint64_t left = frame.size() - at - 8;
    const std::array<std::uint64_t, 12> counts{0,
                                               1,
                                               left,
                                               left + 1,
                                               left / 17,
                                               limits::name_bytes,
                                               limits::name_bytes + 1,
                                               limits::text_bytes,
                                               limits::tensors,
                                               limits::frame_bytes,
                                               std::uint64_t{1} << 61,
                                               UINT64_MAX};
    poke(frame, at, counts[below(counts.size())]);
  }
  /// The start of one message and the end of another.
  void splice(bytes& frame) {
    const bytes other = sample(below(types));
    frame.resize(header_bytes + below(frame.size() - header_bytes + 1));
    const std::size_t from = header_bytes + below(other.size() - header_bytes + 1);
    frame.insert(frame.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
  }
  /// Reads one message as another.
  void retype(bytes& frame) { poke(frame, 6, static_cast<std::uint16_t>(below(types))); }

 private:
  [[nodiscard]] std::byte any_byte() { return static_cast<std::byte>(below(256)); }

  std::mt19937_64 random_;
  filler filler_;
  encoder out_;
};

using mutation = void (mutator::*)(bytes&);
struct named_mutation {
  const char* name;
  mutation apply;
};
constexpr named_mutation mutations[] = {
    {"flip_bits", &mutator::flip_bits}, {"truncate", &mutator::truncate}, {"extend", &mutator::extend},
    {"overwrite", &mutator::overwrite}, {"lie", &mutator::lie},           {"splice", &mutator::splice},
    {"retype", &mutator::retype},
};

TEST_CASE("codec fuzz: one mutation of every message type") {
  encoder out;
  decoder in;
  constexpr std::uint64_t seed = 31;
  CAPTURE(seed);
  for (const named_mutation& mutate : mutations) {
    CAPTURE(mutate.name);
    mutator random{seed};
    int accepted = 0;
    int refused_in_payload = 0;
    for (std::size_t type = 0; type < types; ++type) {
      CAPTURE(type);
      for (int round = 0; round < rounds(); ++round) {
        CAPTURE(round);
        bytes frame = random.sample(type);
        (random.*mutate.apply)(frame);
        if (frame.size() >= header_bytes && round % 4 != 0) set_length(frame);
        const decode_result got = check_decode(in, out, frame);
        accepted += got.ok() ? 1 : 0;
        refused_in_payload += got.fault >= decode_fault::byte_order ? 1 : 0;
      }
    }
    CHECK(refused_in_payload > 0);  // the mutation got past the header
    const bool shortens = mutate.apply == &mutator::truncate || mutate.apply == &mutator::extend;
    CHECK((accepted > 0) != shortens);  // no message is the start of another, or followed by anything
  }
}

TEST_CASE("codec fuzz: piles of mutations") {
  encoder out;
  decoder in;
  std::set<decode_fault> seen;
  constexpr std::uint64_t seed = 32;
  CAPTURE(seed);
  mutator random{seed};
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    for (int round = 0; round < 2 * rounds(); ++round) {
      CAPTURE(round);
      bytes frame = random.sample(type);
      for (std::size_t n = 1 + random.below(5); n > 0; --n) {
        if (frame.size() < header_bytes) break;
        (random.*mutations[random.below(std::size(mutations))].apply)(frame);
      }
      if (frame.size() >= header_bytes && round % 8 != 0) set_length(frame);
      seen.insert(check_decode(in, out, frame).fault);
    }
  }
  for (const decode_fault expected :
       {decode_fault::none, decode_fault::frame_too_short, decode_fault::length_mismatch,
        decode_fault::truncated, decode_fault::trailing_bytes, decode_fault::bad_flag,
        decode_fault::bad_enumerator, decode_fault::text_too_long, decode_fault::list_too_long,
        decode_fault::key_too_long}) {
    CAPTURE(to_string(expected));
    CHECK(seen.contains(expected));
  }
}

TEST_CASE("codec fuzz: a decoder that has seen garbage reads the next good frame as a new one does") {
  encoder out;
  decoder used;
  mutator random{33};
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    for (int round = 0; round < 50; ++round) {
      bytes garbage = random.sample(random.below(types));
      random.overwrite(garbage);
      random.lie(garbage);
      check_decode(used, out, garbage);
      const bytes good = random.sample(type);
      decode_result got = used.decode(good);
      decode_result expected = decoder{}.decode(good);
      REQUIRE(got.ok());
      CHECK(message_samples::equal(got.message, expected.message));
    }
  }
}

}  // namespace
