/// \file codec_round_trip.cpp
/// Every message type survives the wire, and the bytes are those that the protocol promises.

#include <doctest/doctest.h>

#include <cereal/archives/portable_binary.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "message_samples.hpp"
#include "tensorhub/service/codec.hpp"

// What cereal needs to know of our types. It looks for these functions in its own namespace, that of its
// archives.
namespace cereal {

template <typename Archive, typename T>
requires requires(T& message) {
  message_samples::fields(message);
}
void serialize(Archive& archive, T& message) {
  std::apply([&archive](auto&... field) { (archive(field), ...); }, message_samples::fields(message));
}
template <typename Archive>
void save(Archive& archive, const tensorhub::remote_key& key) {
  archive(key.used_bytes, binary_data(key.bytes.data(), key.used_bytes));
}

}  // namespace cereal

namespace {

using namespace tensorhub;
using message_samples::filler;

constexpr std::size_t types = messages::message::size;

std::vector<std::byte> copy(std::span<const std::byte> frame) {
  return {frame.begin(), frame.end()};
}

std::string hex(std::span<const std::byte> bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out += digits[static_cast<unsigned>(b) >> 4];
    out += digits[static_cast<unsigned>(b) & 15u];
  }
  return out;
}

/// The payload as cereal's own archive writes it, with the fields of message_samples.hpp: neither the list of
/// fields nor any code that makes bytes is the codec's.
std::string by_cereal(const messages::message& body) {
  std::ostringstream stream;
  {
    cereal::PortableBinaryOutputArchive archive{stream,
                                                cereal::PortableBinaryOutputArchive::Options::LittleEndian()};
    visit([&](const auto& message) { archive(message); }, body);
  }
  return stream.str();
}

TEST_CASE("codec: every message type survives the wire") {
  encoder out;
  decoder in;
  filler random{7};
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    for (int round = 0; round < 200; ++round) {
      messages::envelope sent = random.sample(type);
      REQUIRE(sent.body.index() == type);
      const auto frame = copy(out.encode(sent));
      decode_result got = in.decode(frame);
      REQUIRE(got.fault == decode_fault::none);
      CHECK(got.protocol == control_protocol);
      REQUIRE(message_samples::equal(sent, got.message));
      CHECK(copy(out.encode(got.message)) == frame);
    }
  }
}

TEST_CASE("codec: a payload has exactly the bytes of cereal's portable-binary archive") {
  encoder out;
  filler random{8};
  for (std::size_t type = 0; type < types; ++type) {
    CAPTURE(type);
    for (int round = 0; round < 50; ++round) {
      messages::envelope sent = random.sample(type);
      sent.open.clear();
      const auto frame = copy(out.encode(sent));
      const std::string expected = by_cereal(sent.body);
      REQUIRE(frame.size() == codec_detail::header_bytes + expected.size());
      CHECK(std::memcmp(frame.data() + codec_detail::header_bytes, expected.data(), expected.size()) == 0);
    }
  }
}

/// Magic and protocol.
const std::string header =
    "54485542"
    "0a00";

TEST_CASE("codec: golden frames of protocol 9") {
  encoder out;
  SUBCASE("heartbeat_request") {
    const messages::envelope m{0x1122334455667788, {}, {9}, messages::heartbeat_request{5, 6}};
    CHECK(hex(out.encode(m)) == header +
                                    "1200"
                                    "11000000"
                                    "00000000"
                                    "8877665544332211"
                                    "0000000000000000"
                                    "0900000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0500000000000000"
                                    "0600000000000000");
  }
  SUBCASE("join_request") {
    messages::join_request join;
    join.model = "m";
    join.replica = "r";
    join.shard = {1, 2};
    join.location = {"dc", "rack", "host", {}};
    join.spot = true;
    join.form.transport = "tcp";
    join.form.consistency = "c";
    join.form.integrity = "x";
    join.address = {"a", "A"};
    join.form.layout_digest = {1, 2};
    join.form.chunk_bytes = 4096;
    join.form.chunk_count = 3;
    join.form.tensors = {{"w", dtype::bf16, {2, 3}}};
    join.before.operation = {5};
    join.before.decided = 7;
    join.before.latest = 8;
    join.before.latest.line = 1;
    join.before.peers = 9;
    join.before.keeps = {1, 2, {6}, {{1, 7}}};
    join.capability_key = "k";
    join.before.server = {10};
    join.before.returns = true;
    join.before.barred = {incarnation{11}};
    join.proof = {12, 13};
    const messages::envelope m{1, {2}, {}, join};
    CHECK(hex(out.encode(m)) == header +
                                    "0000"
                                    "56010000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0100000000000000"
                                    "6d"  // model
                                    "0100000000000000"
                                    "72"  // replica
                                    "01000000"
                                    "02000000"  // shard
                                    "0200000000000000"
                                    "6463"  // place
                                    "0400000000000000"
                                    "7261636b"
                                    "0400000000000000"
                                    "686f7374"
                                    "0000000000000000"
                                    "01"  // spot
                                    "0300000000000000"
                                    "746370"  // policies
                                    "0100000000000000"
                                    "63"
                                    "0100000000000000"
                                    "78"
                                    "0100000000000000"
                                    "61"  // address
                                    "0100000000000000"
                                    "41"
                                    "0100000000000000"  // layout
                                    "0200000000000000"
                                    "0010000000000000"
                                    "0300000000000000"
                                    "0100000000000000"  // one tensor:
                                    "0100000000000000"
                                    "77"
                                    "05"
                                    "0200000000000000"
                                    "0200000000000000"
                                    "0300000000000000"
                                    "01"                // holds nothing
                                    "0500000000000000"  // operation
                                    "0000000000000000"  // reads nobody
                                    "01"                // shows nothing
                                    "01"                // ended well
                                    "0700000000000000"  // decided
                                    "00000000"
                                    "0800000000000000"  // latest
                                    "01000000"
                                    "09000000"          // peers
                                    "0100000000000000"  // retention
                                    "02000000"
                                    "0100000000000000"
                                    "0600000000000000"
                                    "00000000"
                                    "0100000000000000"  // rolled back once
                                    "01000000"
                                    "0700000000000000"
                                    "00"  // temporary
                                    "0100000000000000"
                                    "6b"                    // capability key
                                    "0a000000000000000001"  // the server before; returns
                                    "0100000000000000"      // one barred reader
                                    "0b00000000000000"
                                    "0c00000000000000"  // proof
                                    "0d00000000000000");
  }
  SUBCASE("update_request") {
    messages::update_request request{{3}, exactly(7), 500, messages::update_reach::prefer_local, {}};
    request.shows = messages::announcement{2, {3, 4096, {}}};
    request.ahead = true;
    const messages::envelope m{1, {2}, {1}, request};
    CHECK(hex(out.encode(m)) == header +
                                    "0500"
                                    "36000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0100000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0300000000000000"
                                    "01"
                                    "0700000000000000"
                                    "00000000"
                                    "f4010000"
                                    "01"
                                    "00"
                                    "0200000000000000"
                                    "0300000000000000"
                                    "0010000000000000"
                                    "00"
                                    "01");
  }
}

TEST_CASE("codec: golden frames, answers and pushes") {
  encoder out;
  SUBCASE("committed_push") {
    const messages::envelope m{1, {}, {}, messages::committed_push{7, {8, 9}}};
    CHECK(hex(out.encode(m)) == header +
                                    "2500"
                                    "1d000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0700000000000000"
                                    "00000000"
                                    "0800000000000000"
                                    "0900000000000000");
  }
  SUBCASE("update_reply without a source") {
    messages::update_reply reply;
    reply.result = {errc::timed_out, "late"};
    reply.version = 258;
    reply.ordinal = 9;
    reply.open = true;
    reply.root = {1, 2};
    const messages::envelope m{1, {2}, {}, reply};
    CHECK(hex(out.encode(m)) == header +
                                    "0600"
                                    "46000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0900"
                                    "0400000000000000"
                                    "6c617465"
                                    "0000000000000000"
                                    "00"
                                    "0201000000000000"
                                    "00000000"
                                    "0000000000000000"
                                    "090000000000000000"
                                    "01"
                                    "0100000000000000"
                                    "0200000000000000");
  }
  SUBCASE("update_reply with one source") {
    messages::assignment source;
    source.operation = {3};
    source.lease = {11};
    source.version = 7;
    source.root = {1, 2};
    source.source = {42};
    source.source_replica = "r";
    source.source_shard = 1;
    source.address = {"a/b", "C"};
    source.control = {3, 4096, {}};
    source.control.key.used_bytes = 1;
    source.control.key.bytes[0] = std::byte{0xff};
    source.segments = {{5, 6, "B"}};
    source.epoch = 4;
    source.drained = true;
    source.ordinal = 6;
    const messages::envelope m{1, {2}, {}, messages::update_reply{{}, {3}, false, 7, {source}, 5}};
    CHECK(hex(out.encode(m)) == header +
                                    "0600"
                                    "dd000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0000"
                                    "0000000000000000"
                                    "0300000000000000"
                                    "00"
                                    "0700000000000000"
                                    "00000000"
                                    "0100000000000000"  // one source:
                                    "0300000000000000"
                                    "0b00000000000000"
                                    "0700000000000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "2a00000000000000"
                                    "0100000000000000"
                                    "72"
                                    "01000000"
                                    "0300000000000000"
                                    "612f62"
                                    "0100000000000000"
                                    "43"
                                    "0300000000000000"
                                    "0010000000000000"
                                    "01"
                                    "ff"
                                    "0100000000000000"  // one segment
                                    "0500000000000000"
                                    "0600000000000000"
                                    "0100000000000000"
                                    "42"
                                    "0400000000000000"
                                    "01"
                                    "00"
                                    "0600000000000000"
                                    "00"  // and the reader's own number
                                    "050000000000000000"
                                    "00"
                                    "0000000000000000"
                                    "0000000000000000");
  }
  SUBCASE("describe_reply with one tensor") {
    messages::describe_reply reply;
    reply.shards = 2;
    reply.chunk_bytes = 1 << 20;
    reply.tensors.push_back({"wq", dtype::bf16, {4, 5}});
    const messages::envelope m{1, {2}, {}, reply};
    CHECK(hex(out.encode(m)) == header +
                                    "1000"
                                    "42000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0000"
                                    "0000000000000000"
                                    "02000000"
                                    "0000100000000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "7771"
                                    "05"
                                    "0200000000000000"
                                    "0400000000000000"
                                    "0500000000000000");
  }
  SUBCASE("stuck_reply with one entry") {
    messages::stuck_entry entry{messages::stuck_kind::draining, "m", "r", 1, {42}, 7, {3}, 500, 9, "p", "a"};
    const messages::envelope m{1, {2}, {}, messages::stuck_reply{{}, {entry}, 4}};
    CHECK(hex(out.encode(m)) == header +
                                    "1e00"
                                    "6c000000"
                                    "00000000"
                                    "0100000000000000"
                                    "0200000000000000"
                                    "0000000000000000"
                                    "0000000000000000"
                                    "01"
                                    "0000"
                                    "0000000000000000"
                                    "0100000000000000"  // one entry:
                                    "04"
                                    "0100000000000000"
                                    "6d"
                                    "0100000000000000"
                                    "72"
                                    "01000000"
                                    "2a00000000000000"
                                    "0700000000000000"
                                    "00000000"
                                    "0300000000000000"
                                    "f401000000000000"
                                    "0900000000000000"
                                    "0100000000000000"
                                    "70"
                                    "0100000000000000"
                                    "61"  // and how many there are besides
                                    "04000000");
  }
  SUBCASE("goodbye_push keeps number 25") {
    const messages::envelope m{1, {}, {}, messages::goodbye_push{{4}, true, {}}};
    CHECK(hex(out.encode(m)).substr(12, 4) == "1900");
  }
}

TEST_CASE("codec: the encoder keeps to the limits that the decoder checks") {
  encoder out;
  decoder in;
  SUBCASE("a sentence is cut short, between characters") {
    messages::status_reply reply{{errc::busy, std::string(limits::text_bytes - 1, 'x') + "\xc3\xa9" + "tail"},
                                 {}};
    const decode_result got = in.decode(out.encode({1, {1}, {}, reply}));
    REQUIRE(got.ok());
    CHECK(get_if<messages::status_reply>(&got.message.body)->result.sentence ==
          std::string(limits::text_bytes - 1, 'x'));
  }
  SUBCASE("a sentence of exactly the limit stays whole") {
    const std::string text(limits::text_bytes, 'y');
    const decode_result got =
        in.decode(out.encode({1, {1}, {}, messages::status_reply{{errc::busy, text}, {}}}));
    REQUIRE(got.ok());
    CHECK(get_if<messages::status_reply>(&got.message.body)->result.sentence == text);
  }
  const auto refused = [&](const messages::message& body, const char* words) {
    try {
      (void)out.encode({1, {1}, {}, body});
      FAIL("was not refused");
    } catch (const error& e) {
      CHECK(e.code() == errc::limit_exceeded);
      CHECK(e.sentence().find(words) != std::string::npos);
    }
  };
  SUBCASE("a long name is refused") {
    refused(messages::list_request{std::string(limits::name_bytes + 1, 'n')}, "more than 512 bytes: nnn");
  }
  SUBCASE("too many dimensions are refused") {
    messages::describe_reply reply;
    reply.tensors.push_back({"t", dtype::u8, std::vector<std::uint64_t>(limits::tensor_dimensions + 1, 1)});
    refused(reply, "17 entries");
  }
  SUBCASE("too many sources are refused") {
    messages::update_reply reply;
    reply.sources.resize(limits::sources + 1);
    refused(reply, "65 entries");
    messages::join_request join;
    join.before.reading.resize(limits::sources + 1);
    refused(join, "65 entries");
    reply.sources.pop_back();
    CHECK(in.decode(out.encode({1, {}, {}, reply})).ok());
  }
  SUBCASE("a frame over the limit is refused, and the next one is fine") {
    messages::describe_reply reply;
    reply.tensors.assign(200'000, {std::string(400, 'n'), dtype::u8, {}});
    refused(reply, "longer than");
    CHECK(in.decode(out.encode({1, {}, {}, messages::heartbeat_request{}})).ok());
  }
}

}  // namespace
