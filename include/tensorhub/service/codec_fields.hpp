#pragma once
/// \file codec_fields.hpp
/// Which fields of each control message travel, in which order, and with which limits.
///
/// The order is the protocol: a change here is a new `control_protocol` number (version.hpp). The functions
/// are cereal's `serialize`; a message without one does not compile with the codec, and the structured
/// bindings name all members of a struct, so neither does one that has gained a field.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/codec_archive.hpp"
#include "tensorhub/service/messages.hpp"

namespace tensorhub::inline TENSORHUB_MODE {
namespace codec_detail {

[[nodiscard]] inline auto as_name(std::string& text) noexcept {
  return bounded_text<limits::name_bytes, text_kind::name>{text};
}
[[nodiscard]] inline auto as_sentence(std::string& text) noexcept {
  return bounded_text<limits::text_bytes, text_kind::sentence>{text};
}
/// Opaque bytes that must not show up in a sentence.
[[nodiscard]] inline auto as_secret(std::string& bytes) noexcept {
  return bounded_text<limits::capability_bytes, text_kind::secret>{bytes};
}
/// No list needs a limit of its own where the frame's is the only sensible one.
template <std::size_t MinimumBytes, std::size_t LimitCount = limits::frame_bytes, typename T>
[[nodiscard]] auto as_list(std::vector<T>& values) noexcept {
  return bounded_list<LimitCount, MinimumBytes, T>{values};
}

/// On the wire: a text's or list's count is 8 bytes, a flag 1, an errc 2.
inline constexpr std::size_t minimum_tensor_bytes = 8 + 1 + 8;
inline constexpr std::size_t minimum_replica_entry_bytes = 8 + 4 + 8 + 1 + 1 + 4;
inline constexpr std::size_t minimum_model_entry_bytes = 8 + 4 + 8 + 8 + 8 + 8;
inline constexpr std::size_t minimum_stuck_entry_bytes = 1 + 8 + 8 + 4 + 8 * 7;
inline constexpr std::size_t minimum_assignment_bytes =
    8 * 3 + 16 + 8 + 8 + 4 + 8 + 8 + 17 + 8 + 1 + 1 + 8 + 1;

}  // namespace codec_detail

// ---- values

template <typename Archive, typename Tag>
void serialize(Archive& archive, strong_id<Tag>& id) {
  auto& [value] = id;
  archive(value);
}
template <typename Archive>
void serialize(Archive& archive, version_number& version) {
  auto& [value] = version;
  archive(value);
}
template <typename Archive>
void serialize(Archive& archive, version_selector& selector) {
  auto& [kind, version] = selector;
  archive(kind, version);
}
template <typename Archive>
void serialize(Archive& archive, digest128& digest) {
  auto& [low, high] = digest;
  archive(low, high);
}
template <typename Archive>
void serialize(Archive& archive, shard_of& shard) {
  auto& [index, count] = shard;
  archive(index, count);
}
template <typename Archive>
void serialize(Archive& archive, location& place) {
  auto& [datacenter, rack, host, device] = place;
  using codec_detail::as_name;
  archive(as_name(datacenter), as_name(rack), as_name(host), as_name(device));
}
template <typename Archive>
void serialize(Archive& archive, transport_address& address) {
  auto& [text, capability] = address;
  archive(codec_detail::bounded_text<limits::address_bytes, codec_detail::text_kind::name>{text},
          codec_detail::as_secret(capability));
}
/// Only the used bytes of the key travel.
template <typename Archive>
void serialize(Archive& archive, remote_key& key) {
  if constexpr (std::is_same_v<Archive, codec_detail::input_archive>) {
    std::uint8_t used_bytes = 0;
    archive(used_bytes);
    if (used_bytes > key.bytes.size()) return archive.fail(decode_fault::key_too_long);
    archive.take(key.bytes.data(), used_bytes);
    key.used_bytes = used_bytes;
  } else {
    static_assert(!Archive::is_loading::value, "only input_archive may read: others do not check limits");
    if (key.used_bytes > key.bytes.size())
      throw error(errc::limit_exceeded, "a remote key is longer than its limit");
    archive(key.used_bytes, cereal::binary_data(key.bytes.data(), key.used_bytes));
  }
}
template <typename Archive>
void serialize(Archive& archive, remote_region& region) {
  auto& [base, bytes, key] = region;
  archive(base, bytes, key);
}
template <typename Archive>
void serialize(Archive& archive, tensor_spec& tensor) {
  auto& [name, type, shape] = tensor;
  archive(codec_detail::as_name(name), type, codec_detail::as_list<8, limits::tensor_dimensions>(shape));
}

namespace messages {

using codec_detail::as_list;
using codec_detail::as_name;
using codec_detail::as_sentence;

// ---- parts of messages

template <typename Archive>
void serialize(Archive& archive, status& m) {
  auto& [code, sentence] = m;
  archive(code, as_sentence(sentence));
}
template <typename Archive>
void serialize(Archive& archive, reference& m) {
  auto& [version, epoch, root, control] = m;
  archive(version, epoch, root, control);
}
template <typename Archive>
void serialize(Archive& archive, assignment& m) {
  auto& [operation, lease, version, root, source, source_replica, source_shard, address, control, epoch,
         drained, receiving, ordinal, crossing] = m;
  archive(operation, lease, version, root, source, as_name(source_replica), source_shard, address, control,
          epoch, drained, receiving, ordinal, crossing);
}
template <typename Archive>
void serialize(Archive& archive, retention& m) {
  auto& [revision, keep_latest, pinned] = m;
  archive(revision, keep_latest, as_list<8, limits::retained_versions>(pinned));
}
template <typename Archive>
void serialize(Archive& archive, announcement& m) {
  auto& [epoch, control] = m;
  archive(epoch, control);
}
/// The list of sources of one reader.
[[nodiscard]] inline auto as_sources(std::vector<assignment>& sources) noexcept {
  return as_list<codec_detail::minimum_assignment_bytes, limits::sources>(sources);
}
template <typename Archive>
void serialize(Archive& archive, replica_entry& m) {
  auto& [name, shards_joined, version, torn, spot, readers] = m;
  archive(as_name(name), shards_joined, version, torn, spot, readers);
}
template <typename Archive>
void serialize(Archive& archive, model_entry& m) {
  auto& [name, shards, bytes, latest, available, replicas] = m;
  archive(as_name(name), shards, bytes, latest, as_list<8>(available),
          as_list<codec_detail::minimum_replica_entry_bytes>(replicas));
}
template <typename Archive>
void serialize(Archive& archive, stuck_entry& m) {
  auto& [kind, model, replica, shard, worker, version, operation, waited_ms, chunks, peers, advice] = m;
  archive(kind, as_name(model), as_name(replica), shard, worker, version, operation, waited_ms, chunks,
          as_sentence(peers), as_sentence(advice));
}

// ---- messages, in the order of `message`

template <typename Archive>
void serialize(Archive& archive, join_request& m) {
  auto& [model, replica, shard, place, spot, transport, consistency, integrity, address, layout_digest,
         chunk_bytes, chunk_count, tensors, held, operation, reading, receiving, ended_well, decided, latest,
         peers, keeps, temporary, capability_key, before, barred] = m;
  archive(as_name(model), as_name(replica), shard, place, spot, as_name(transport), as_name(consistency),
          as_name(integrity), address, layout_digest, chunk_bytes, chunk_count,
          as_list<codec_detail::minimum_tensor_bytes, limits::tensors>(tensors), held, operation,
          as_sources(reading), receiving, ended_well, decided, latest, peers, keeps, temporary,
          codec_detail::as_secret(capability_key), before, as_list<8, limits::barred_readers>(barred));
}
template <typename Archive>
void serialize(Archive& archive, join_reply& m) {
  auto& [result, epoch, wants_layout, heartbeat_interval_ms, worker_timeout_ms, group_timeout_ms, operation,
         latest, workers] = m;
  archive(result, epoch, wants_layout, heartbeat_interval_ms, worker_timeout_ms, group_timeout_ms, operation,
          latest, workers);
}
template <typename Archive>
void serialize(Archive& archive, publish_request& m) {
  auto& [operation, held] = m;
  archive(operation, held);
}
template <typename Archive>
void serialize(Archive& archive, unpublish_request& m) {
  auto& [version, epoch, operation, leaving] = m;
  archive(version, epoch, operation, leaving);
}
template <typename Archive>
void serialize(Archive& archive, drained_reply& m) {
  auto& [result, finished, moved, cut_off, revoke, lost] = m;
  archive(result, finished, moved, cut_off, revoke, lost);
}
template <typename Archive>
void serialize(Archive& archive, update_request& m) {
  auto& [operation, selector, timeout_ms, reach, shows] = m;
  archive(operation, selector, timeout_ms, reach, shows);
}
template <typename Archive>
void serialize(Archive& archive, update_reply& m) {
  auto& [result, operation, keep, version, sources, ordinal] = m;
  archive(result, operation, keep, version, as_sources(sources), ordinal);
}
template <typename Archive>
void serialize(Archive& archive, receiving_request& m) {
  auto& [operation, shows] = m;
  archive(operation, shows);
}
template <typename Archive>
void serialize(Archive& archive, source_failed_request& m) {
  auto& [operation, lease, reason, detail] = m;
  archive(operation, lease, reason, as_sentence(detail));
}
template <typename Archive>
void serialize(Archive& archive, lease_released_request& m) {
  auto& [lease] = m;
  archive(lease);
}
template <typename Archive>
void serialize(Archive& archive, finish_request& m) {
  auto& [operation, version, result, intact, held, lease] = m;
  archive(operation, version, result, intact, held, lease);
}
template <typename Archive>
void serialize(Archive& archive, cut_off_done_request& m) {
  auto& [reader] = m;
  archive(reader);
}
template <typename Archive>
void serialize(Archive& archive, wait_request& m) {
  auto& [selector, timeout_ms] = m;
  archive(selector, timeout_ms);
}
template <typename Archive>
void serialize(Archive& archive, version_reply& m) {
  auto& [result, version] = m;
  archive(result, version);
}
template <typename Archive>
void serialize(Archive& archive, list_request& m) {
  auto& [model] = m;
  archive(as_name(model));
}
template <typename Archive>
void serialize(Archive& archive, list_reply& m) {
  auto& [result, models] = m;
  archive(result, as_list<codec_detail::minimum_model_entry_bytes>(models));
}
template <typename Archive>
void serialize(Archive& archive, describe_request& m) {
  auto& [model, shard] = m;
  archive(as_name(model), shard);
}
template <typename Archive>
void serialize(Archive& archive, describe_reply& m) {
  auto& [result, shards, chunk_bytes, tensors] = m;
  archive(result, shards, chunk_bytes, as_list<codec_detail::minimum_tensor_bytes, limits::tensors>(tensors));
}
template <typename Archive>
void serialize(Archive&, leave_request&) {}
template <typename Archive>
void serialize(Archive& archive, retain_request& m) {
  auto& [keep_latest, pin, release] = m;
  archive(keep_latest, pin, release);
}
template <typename Archive>
void serialize(Archive& archive, offload_failed_request& m) {
  auto& [version, reason] = m;
  archive(version, reason);
}
template <typename Archive>
void serialize(Archive& archive, retention_push& m) {
  auto& [keeps] = m;
  archive(keeps);
}
template <typename Archive>
void serialize(Archive& archive, offload_push& m) {
  auto& [version, replica] = m;
  archive(version, as_name(replica));
}
template <typename Archive>
void serialize(Archive&, drop_push&) {}
template <typename Archive>
void serialize(Archive& archive, heartbeat_request& m) {
  auto& [chunks, retention] = m;
  archive(chunks, retention);
}
template <typename Archive>
void serialize(Archive& archive, why_request& m) {
  auto& [model, replica, shard] = m;
  archive(as_name(model), as_name(replica), shard);
}
template <typename Archive>
void serialize(Archive& archive, why_reply& m) {
  auto& [result, decisions] = m;
  archive(result, as_sentence(decisions));
}
template <typename Archive>
void serialize(Archive& archive, stuck_request& m) {
  auto& [model, older_than_ms] = m;
  archive(as_name(model), older_than_ms);
}
template <typename Archive>
void serialize(Archive& archive, stuck_reply& m) {
  auto& [result, entries, left_out] = m;
  archive(result, as_list<codec_detail::minimum_stuck_entry_bytes>(entries), left_out);
}
template <typename Archive>
void serialize(Archive& archive, heartbeat_reply& m) {
  auto& [epoch, latest, workers] = m;
  archive(epoch, latest, workers);
}
template <typename Archive>
void serialize(Archive& archive, status_reply& m) {
  auto& [result, operation] = m;
  archive(result, operation);
}
template <typename Archive>
void serialize(Archive& archive, version_push& m) {
  auto& [version] = m;
  archive(version);
}
template <typename Archive>
void serialize(Archive& archive, reassign_push& m) {
  auto& [old_lease, source] = m;
  archive(old_lease, source);
}
template <typename Archive>
void serialize(Archive& archive, cut_off_push& m) {
  auto& [reader] = m;
  archive(reader);
}
template <typename Archive>
void serialize(Archive& archive, abort_push& m) {
  auto& [operation, reason] = m;
  archive(operation, reason);
}
template <typename Archive>
void serialize(Archive& archive, goodbye_push& m) {
  auto& [epoch, rejoin, reason] = m;
  archive(epoch, rejoin, reason);
}

}  // namespace messages
}  // namespace tensorhub::inline TENSORHUB_MODE
