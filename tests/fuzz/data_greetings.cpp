/// \file data_greetings.cpp
/// What two processes say to each other before the first read: hellos, welcomes, and the keys of verbs and
/// libfabric.
///
/// The implementation files of both protocols are included here: they need neither library nor device.
///
/// Input: which of them, then its bytes; checksums are made right half of the time.

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "input.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/transports/tcp/protocol.hpp"
#include "tensorhub/transports/verbs/protocol.hpp"
#include "tensorhub/types/reader_gate.hpp"

#if !defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/protocol.ipp"
#include "tensorhub/transports/verbs/impl/protocol.ipp"
#endif

namespace {

using namespace tensorhub;

constexpr incarnation self{77};
constexpr incarnation peer{78};
constexpr incarnation dead{79};

template <typename Packet>
Packet taken(fuzz::input& in) {
  Packet out;
  const auto raw = in.bytes(sizeof out);
  if (!raw.empty()) std::memcpy(static_cast<void*>(&out), raw.data(), raw.size());
  return out;
}

remote_key key_in(fuzz::input& in) {
  remote_key out;
  const auto raw = in.bytes(out.bytes.size());
  if (!raw.empty()) std::memcpy(out.bytes.data(), raw.data(), raw.size());
  out.used_bytes = static_cast<std::uint8_t>(in.once_in(4) ? in.byte() : raw.size());
  return out;
}

void verbs_key(fuzz::input& in) {
  using namespace transports::verbs_detail;
  const bool is_summed = in.once_in(2);
  remote_key raw = key_in(in);
  if (is_summed) {
    region_key said;
    std::memcpy(&said.head, raw.bytes.data(), sizeof said.head);
    const std::size_t rkeys = std::size_t{said.head.rails} * said.head.pieces;
    if (rkeys > most_rkeys) return;
    std::memcpy(said.rkeys.data(), raw.bytes.data() + sizeof said.head, rkeys * sizeof said.rkeys[0]);
    said.head.format = key_head{}.format;
    raw = encode_key(said, peer);
  }
  region_key key;
  if (!decode_key(raw, peer, key)) return;
  const remote_key again = encode_key(key, peer);
  fuzz::require(again.used_bytes == raw.used_bytes && std::ranges::equal(again.view(), raw.view()),
                "a key of verbs is written as it was read");
  fuzz::require(key.head.rails > 0 && key.head.pieces > 0, "a key of verbs has rails and pieces");
  const auto last = key.rkey(key.head.rails - 1u, key.head.pieces - 1u);
  fuzz::require(last == key.rkeys[std::size_t{key.head.rails} * key.head.pieces - 1], "all rkeys are there");
  const std::uint64_t piece_bytes = piece_bytes_of(key.head.bytes, key.head.pieces);
  if (key.head.bytes == 0) return;
  fuzz::require(piece_bytes > 0 && (key.head.bytes - 1) / piece_bytes < key.head.pieces,
                "every byte of a region is in one of its pieces");
}

void libfabric_key(fuzz::input& in) {
  using namespace transports::libfabric_detail;
  const bool is_sealed = in.once_in(2);
  remote_key raw = key_in(in);
  if (is_sealed) {
    region_key said;
    std::memcpy(&said, raw.bytes.data(), sizeof said);
    said.key_count = std::min<std::uint64_t>(said.key_count, region_key::most_keys);
    said.seal = said.compute_seal();
    raw = said.packed();
  }
  const auto key = region_key::unpacked(raw);
  if (!key) return;
  const remote_key again = key->packed();
  fuzz::require(again.used_bytes == raw.used_bytes && std::ranges::equal(again.view(), raw.view()),
                "a key of libfabric is written as it was read");
  fuzz::require(key->part_bytes > 0, "a part has bytes");
  if (key->key_count == 0 || key->bytes == 0) return;
  fuzz::require((key->bytes - 1) / key->part_bytes < key->key_count && key->key_count <= key->keys.size(),
                "every byte of a region is in a part that has a key");
}

template <typename Hello>
void greeting(fuzz::input& in, std::uint32_t protocol) {
  detail::reader_gate gate{self};
  gate.cut_off(dead);
  const bool is_guarded = in.once_in(4);
  const std::string secret(capability_key_bytes, 'k');
  if (is_guarded) gate.require_capability(std::as_bytes(std::span{secret}));
  const std::size_t kind = in.below(8);
  auto said = taken<Hello>(in);
  if (kind != 0) said.protocol = protocol;
  if (kind > 1) said.source = self.value;
  if (kind == 2) said.reader = dead.value;
  const auto judged = gate.judge(said, protocol);
  if (judged != detail::refusal::none) {
    fuzz::require(kind < 3 || is_guarded || said.reader == dead.value, "who greets rightly is let in");
    return;
  }
  fuzz::require(said.protocol == protocol && said.source == self.value && said.reader != dead.value,
                "who is let in speaks the protocol, wants this process, and was not cut off");
  fuzz::require(!is_guarded || gate.refused_connections() == 0, "who is let in is not counted as refused");
}

template <typename Welcome>
void answer(fuzz::input& in, std::uint32_t protocol) {
  const std::size_t kind = in.below(4);
  auto said = taken<Welcome>(in);
  if (kind > 0) said.protocol = protocol;
  if (kind > 1) said.source = peer.value;
  if (in.once_in(2)) said.status = {};
  const std::string why = detail::why_refused(said, protocol, peer);
  const bool is_right = said.status == decltype(said.status)::accepted && said.protocol == protocol &&
                        said.source == peer.value;
  fuzz::require(why.empty() == is_right, "only the expected process in the own protocol is welcome");
  fuzz::require(why.size() < 512, "a refusal has a short sentence");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace transports;
  fuzz::input in{data, bytes};
  switch (in.below(10)) {
    case 0:
      greeting<tcp_detail::hello>(in, tcp_detail::data_protocol);
      break;
    case 1:
      greeting<verbs_detail::hello>(in, verbs_detail::data_protocol);
      break;
    case 2:
      greeting<libfabric_detail::hello>(in, libfabric_detail::data_protocol);
      break;
    case 3:
      greeting<same_host_detail::hello>(in, same_host_detail::protocol_number);
      break;
    case 4:
      answer<tcp_detail::welcome>(in, tcp_detail::data_protocol);
      break;
    case 5:
      answer<verbs_detail::welcome>(in, verbs_detail::data_protocol);
      break;
    case 6:
      answer<libfabric_detail::welcome>(in, libfabric_detail::data_protocol);
      break;
    case 7:
      answer<same_host_detail::welcome>(in, same_host_detail::protocol_number);
      break;
    case 8:
      verbs_key(in);
      break;
    default:
      libfabric_key(in);
  }
  return 0;
}
