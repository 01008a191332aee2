#pragma once
/// \file codec_check.hpp
/// What must hold when the decoder is given any bytes whatsoever.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "message_samples.hpp"
#include "tensorhub/service/codec.hpp"

namespace codec_check {

using bytes = std::vector<std::byte>;

inline constexpr std::size_t types = tensorhub::messages::message::size;
using tensorhub::codec_detail::header_bytes;
static_assert(noexcept(std::declval<tensorhub::decoder&>().decode({})));

[[nodiscard]] inline bytes copy(std::span<const std::byte> frame) {
  return {frame.begin(), frame.end()};
}
template <typename T>
void poke(bytes& frame, std::size_t at, T value) {
  REQUIRE(at + sizeof value <= frame.size());
  std::memcpy(frame.data() + at, &value, sizeof value);
}
/// Makes the header agree with the frame's size again.
inline void set_length(bytes& frame) {
  poke(frame, 8, static_cast<std::uint32_t>(frame.size() - header_bytes));
}

/// Decodes, and checks that memory is paid for by input, that every fault has a sentence, and that what was
/// accepted is the one encoding of its message.
inline tensorhub::decode_result check_decode(tensorhub::decoder& in, tensorhub::encoder& out,
                                             const bytes& frame) {
  tensorhub::decode_result got = in.decode(frame);
  // The smallest tensor takes 17 bytes on the wire and 64 in memory: nothing grows by more than that.
  CHECK(message_samples::allocated_bytes(got.message) <= 4 * frame.size());
  const auto sentence = to_string(got.fault);
  CHECK(!sentence.empty());
  CHECK(sentence != "unknown");
  if (got.ok()) {
    const auto again = out.encode(got.message);
    CHECK((again.size() == frame.size() && std::memcmp(again.data(), frame.data(), frame.size()) == 0));
  }
  return got;
}

}  // namespace codec_check
