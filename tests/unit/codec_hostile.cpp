/// \file codec_hostile.cpp
/// No bytes make the decoder throw, crash or allocate more than they pay for.

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <set>

#include "codec_check.hpp"

namespace {

using namespace tensorhub;
using namespace codec_check;
using message_samples::filler;

TEST_CASE("codec: a frame that ends anywhere is refused") {
  encoder out;
  decoder in;
  filler random{21};
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    messages::envelope sample = random.sample(type);
    sample.open.clear();  // a list that ends earlier is another list
    const bytes whole = copy(out.encode(sample));
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(length);
      bytes part{whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)};
      const decode_fault fault = check_decode(in, out, part).fault;
      CHECK(fault == (length < header_bytes ? decode_fault::frame_too_short : decode_fault::length_mismatch));
      if (length < header_bytes) continue;
      set_length(part);  // the header agrees: now the message itself must notice
      CHECK(check_decode(in, out, part).fault == decode_fault::truncated);
    }
  }
}

TEST_CASE("codec: every corrupted byte is refused or is another valid message") {
  encoder out;
  decoder in;
  filler random{22};
  std::set<decode_fault> seen;
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    for (int round = 0; round < 3; ++round) {
      const bytes whole = copy(out.encode(random.sample(type)));
      for (std::size_t at = 0; at < whole.size(); ++at) {
        for (const unsigned flip : {0x01u, 0x80u, 0xffu, 0x10u}) {
          bytes broken = whole;
          broken[at] ^= static_cast<std::byte>(flip);
          seen.insert(check_decode(in, out, broken).fault);
        }
      }
    }
  }
  for (const decode_fault expected :
       {decode_fault::none, decode_fault::wrong_magic, decode_fault::other_protocol,
        decode_fault::unknown_type, decode_fault::reserved_bits, decode_fault::length_mismatch,
        decode_fault::byte_order, decode_fault::truncated, decode_fault::trailing_bytes,
        decode_fault::bad_flag, decode_fault::bad_enumerator, decode_fault::text_too_long,
        decode_fault::list_too_long, decode_fault::unordered, decode_fault::key_too_long}) {
    CAPTURE(to_string(expected));
    CHECK(seen.contains(expected));
  }
}

TEST_CASE("codec: random bytes are refused") {
  encoder out;
  decoder in;
  std::mt19937_64 random{23};
  for (int round = 0; round < 20'000; ++round) {
    bytes frame(random() % 300);
    for (std::byte& b : frame) b = static_cast<std::byte>(random());
    if (round % 2 == 0 && frame.size() > header_bytes) {  // a good header in front of garbage
      codec_detail::frame_header header;
      header.type = static_cast<std::uint16_t>(random() % types);
      header.payload_bytes = static_cast<std::uint32_t>(frame.size() - header_bytes);
      std::memcpy(frame.data(), &header, sizeof header);
      frame[header_bytes] = std::byte{1};
      // Small numbers reach deeper than random ones.
      for (std::size_t i = header_bytes + 1; i < frame.size(); ++i)
        frame[i] &= static_cast<std::byte>(random() % 4);
    }
    check_decode(in, out, frame);
  }
}

TEST_CASE("codec: each fault of a header has its own name") {
  encoder out;
  decoder in;
  const bytes good = copy(out.encode({5, {6}, {4}, messages::unpublish_request{3, 2, {1}}}));
  const auto fault_with = [&](std::size_t at, auto value) {
    bytes frame = good;
    poke(frame, at, value);
    return in.decode(frame);
  };
  CHECK(in.decode(good).ok());
  CHECK(in.decode({}).fault == decode_fault::frame_too_short);
  CHECK(fault_with(0, 'X').fault == decode_fault::wrong_magic);
  CHECK(fault_with(6, std::uint16_t{types}).fault == decode_fault::unknown_type);
  CHECK(fault_with(6, std::uint16_t{0xffff}).fault == decode_fault::unknown_type);
  CHECK(fault_with(12, 1u).fault == decode_fault::reserved_bits);
  CHECK(fault_with(8, 8u).fault == decode_fault::length_mismatch);
  CHECK(fault_with(8, 0xffffffffu).fault == decode_fault::length_mismatch);
  CHECK(fault_with(header_bytes, std::uint8_t{0}).fault == decode_fault::byte_order);
  bytes longer = good;
  longer.push_back({});
  CHECK(in.decode(longer).fault == decode_fault::length_mismatch);
  set_length(longer);
  CHECK(in.decode(longer).fault == decode_fault::trailing_bytes);
  bytes huge(limits::frame_bytes + 1);
  CHECK(in.decode(huge).fault == decode_fault::frame_too_long);
}

TEST_CASE("codec: the list of open requests is bounded and ascends") {
  encoder out;
  decoder in;
  const auto fault_of = [&](std::vector<request_sequence> open) {
    return in.decode(out.encode({5, {6}, {4}, messages::leave_request{}, std::move(open)})).fault;
  };
  CHECK(fault_of({{1}, {3}}) == decode_fault::none);
  CHECK(fault_of({{3}, {1}}) == decode_fault::unordered);
  CHECK(fault_of({{3}, {3}}) == decode_fault::unordered);
  std::vector<request_sequence> many;
  for (std::uint64_t i = 1; i <= limits::worker_requests_in_flight; ++i) many.push_back({i});
  CHECK(fault_of(many) == decode_fault::none);
  many.push_back({1000});
  CHECK(fault_of(many) == decode_fault::list_too_long);
}

TEST_CASE("codec: another protocol number is told apart, whatever follows it") {
  encoder out;
  decoder in;
  bytes frame = copy(out.encode({5, {6}, {4}, messages::unpublish_request{3, 2, {1}}}));
  poke(frame, 4, std::uint16_t{control_protocol + 1});
  poke(frame, 6, std::uint16_t{999});  // a type that does not exist here yet
  CHECK(in.decode(frame).fault == decode_fault::other_protocol);
  CHECK(in.decode(frame).protocol == control_protocol + 1);
  frame.resize(16);  // a protocol with a shorter header
  CHECK(in.decode(frame).fault == decode_fault::other_protocol);
}

TEST_CASE("codec: a claimed length is compared with what is there before anything is reserved") {
  encoder out;
  decoder in;
  const auto with_count = [&](const messages::message& body, std::size_t at, std::uint64_t count) {
    bytes frame = copy(out.encode({1, {1}, {}, body}));
    poke(frame, at, count);
    return check_decode(in, out, frame).fault;
  };
  // list_request: the name's length is the first thing after the mark.
  CHECK(with_count(messages::list_request{"abc"}, header_bytes + 1, 4) == decode_fault::truncated);
  CHECK(with_count(messages::list_request{"abc"}, header_bytes + 1, limits::name_bytes) ==
        decode_fault::truncated);
  CHECK(with_count(messages::list_request{"abc"}, header_bytes + 1, limits::name_bytes + 1) ==
        decode_fault::text_too_long);
  CHECK(with_count(messages::list_request{"abc"}, header_bytes + 1, UINT64_MAX) ==
        decode_fault::text_too_long);
  // list_reply: status (2 + 8), then the number of models.
  CHECK(with_count(messages::list_reply{}, header_bytes + 11, 1) == decode_fault::truncated);
  CHECK(with_count(messages::list_reply{}, header_bytes + 11, UINT64_MAX) == decode_fault::list_too_long);
  // describe_reply: status, shards, chunk_bytes, then the number of tensors.
  CHECK(with_count(messages::describe_reply{}, header_bytes + 23, 1) == decode_fault::truncated);
  CHECK(with_count(messages::describe_reply{}, header_bytes + 23, limits::tensors) ==
        decode_fault::truncated);
  CHECK(with_count(messages::describe_reply{}, header_bytes + 23, limits::tensors + 1) ==
        decode_fault::list_too_long);
  // holding_request: version 12, epoch 8, root 16, control 17, a flag, then the number of segments.
  CHECK(with_count(messages::holding_request{}, header_bytes + 1 + 54, limits::told_segments) ==
        decode_fault::truncated);
  CHECK(with_count(messages::holding_request{}, header_bytes + 1 + 54, limits::told_segments + 1) ==
        decode_fault::list_too_long);
}

TEST_CASE("codec: a megabyte that claims a million tensors reserves only what it can hold") {
  encoder out;
  decoder in;
  bytes frame = copy(out.encode({1, {1}, {}, messages::describe_reply{}}));
  poke(frame, header_bytes + 23, std::uint64_t{60'000});
  frame.resize(frame.size() + (1u << 20), std::byte{0xff});
  set_length(frame);
  CHECK(check_decode(in, out, frame).fault == decode_fault::text_too_long);
  poke(frame, header_bytes + 23, std::uint64_t{limits::tensors});  // more than 1 MiB can hold
  decode_result got = in.decode(frame);
  CHECK(got.fault == decode_fault::truncated);
  CHECK(message_samples::allocated_bytes(got.message) == 0);
}

}  // namespace
