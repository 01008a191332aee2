#pragma once
/// \file codec_fields.ipp
/// The fields of each control message on the wire, with their order and limits.
///
/// The order is part of the protocol: a change requires a new `control_protocol` number (version.hpp). The
/// codec does not compile if a message has no list. The structured bindings name all members of a struct,
/// so a message with a new field does not compile until its list contains the field.

#include "tensorhub/service/impl/codec_archive.ipp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/location.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::codec_detail {

[[nodiscard]] inline bounded_text as_name(std::string& text) noexcept {
  return {text, limits::name_bytes, text_kind::name};
}
[[nodiscard]] inline bounded_text as_sentence(std::string& text) noexcept {
  return {text, limits::text_bytes, text_kind::sentence};
}
/// Opaque bytes that must not appear in a sentence.
[[nodiscard]] inline bounded_text as_secret(std::string& bytes) noexcept {
  return {bytes, limits::capability_bytes, text_kind::secret};
}
/// `limit_count`: by default only the limit of the frame bounds the list.
template <typename T>
[[nodiscard]] bounded_list<T> as_list(std::vector<T>& values, std::size_t minimum_bytes,
                                      std::size_t limit_count = limits::frame_bytes) noexcept {
  return {values, limit_count, minimum_bytes};
}

/// On the wire: a text's or list's count is 8 bytes, a flag 1, an errc 2.
inline constexpr std::size_t minimum_tensor_bytes = 8 + 1 + 8;
inline constexpr std::size_t minimum_version_bytes = 8 + 4;
inline constexpr std::size_t minimum_told_region_bytes = 8 + 8 + 8;
inline constexpr std::size_t minimum_replica_entry_bytes = 8 + 4 + minimum_version_bytes + 1 + 1 + 4;
inline constexpr std::size_t minimum_model_entry_bytes = 8 + 4 + 8 + minimum_version_bytes + 8 + 8;
inline constexpr std::size_t minimum_stuck_entry_bytes = 1 + 8 + 8 + 4 + minimum_version_bytes + 8 * 6;
inline constexpr std::size_t minimum_assignment_bytes =
    8 * 2 + minimum_version_bytes + 16 + 8 + 8 + 4 + 8 + 8 + 17 + 8 + 8 + 1 + 1 + 8 + 1;

// ---- values

template <typename Tag>
void move_field(field_archive& archive, strong_id<Tag>& id) {
  auto& [value] = id;
  archive(value);
}
inline void move_field(field_archive& archive, version_number& version) {
  auto& [value, line] = version;
  archive(value, line);
}
inline void move_field(field_archive& archive, version_selector& selector) {
  auto& [kind, version] = selector;
  archive(kind, version);
}
inline void move_field(field_archive& archive, digest128& digest) {
  auto& [low, high] = digest;
  archive(low, high);
}
inline void move_field(field_archive& archive, shard_of& shard) {
  auto& [index, count] = shard;
  archive(index, count);
}
inline void move_field(field_archive& archive, location& place) {
  auto& [datacenter, rack, host, device] = place;
  archive(as_name(datacenter), as_name(rack), as_name(host), as_name(device));
}
inline void move_field(field_archive& archive, transport_address& address) {
  auto& [text, capability] = address;
  archive(bounded_text{text, limits::address_bytes, text_kind::name}, as_secret(capability));
}
/// Only the used bytes of the key travel.
inline void move_field(field_archive& archive, remote_key& key) {
  auto& [bytes, used_bytes] = key;
  std::uint8_t count = used_bytes;
  archive(count);
  if (count > bytes.size()) return archive.refuse_key();
  archive.raw(bytes.data(), count);
  if (archive.reads()) used_bytes = count;
}
inline void move_field(field_archive& archive, remote_region& region) {
  auto& [base, bytes, key] = region;
  archive(base, bytes, key);
}
inline void move_field(field_archive& archive, told_region& region) {
  auto& [base, bytes, key] = region;
  archive(base, bytes, bounded_text{key, limits::remote_key_bytes, text_kind::secret});
}
[[nodiscard]] inline auto as_segments(std::vector<told_region>& segments) noexcept {
  return as_list(segments, minimum_told_region_bytes, limits::told_segments);
}
inline void move_field(field_archive& archive, tensor_spec& tensor) {
  auto& [name, type, shape] = tensor;
  archive(as_name(name), type, as_list(shape, 8, limits::tensor_dimensions));
}

// ---- parts of messages

inline void move_field(field_archive& archive, messages::status& m) {
  auto& [code, sentence] = m;
  archive(code, as_sentence(sentence));
}
inline void move_field(field_archive& archive, messages::reference& m) {
  auto& [version, epoch, root, control, open, segments] = m;
  archive(version, epoch, root, control, open, as_segments(segments));
}
inline void move_field(field_archive& archive, messages::assignment& m) {
  auto& [operation, lease, version, root, source, source_replica, source_shard, address, control, segments,
         epoch, drained, receiving, ordinal, crossing] = m;
  archive(operation, lease, version, root, source, as_name(source_replica), source_shard, address, control,
          as_segments(segments), epoch, drained, receiving, ordinal, crossing);
}
inline void move_field(field_archive& archive, messages::rollback& m) {
  auto& [line, to] = m;
  archive(line, to);
}
inline void move_field(field_archive& archive, messages::retention& m) {
  auto& [revision, keep_latest, pinned, rollbacks] = m;
  archive(revision, keep_latest, as_list(pinned, minimum_version_bytes, limits::retained_versions),
          as_list(rollbacks, 4 + 8, limits::rollbacks));
}
inline void move_field(field_archive& archive, messages::announcement& m) {
  auto& [epoch, control] = m;
  archive(epoch, control);
}
/// The list of sources of one reader.
[[nodiscard]] inline auto as_sources(std::vector<messages::assignment>& sources) noexcept {
  return as_list(sources, minimum_assignment_bytes, limits::sources);
}
inline void move_field(field_archive& archive, messages::replica_entry& m) {
  auto& [name, shards_joined, version, torn, spot, readers] = m;
  archive(as_name(name), shards_joined, version, torn, spot, readers);
}
inline void move_field(field_archive& archive, messages::model_entry& m) {
  auto& [name, shards, bytes, latest, available, replicas] = m;
  archive(as_name(name), shards, bytes, latest, as_list(available, minimum_version_bytes),
          as_list(replicas, minimum_replica_entry_bytes));
}
inline void move_field(field_archive& archive, messages::stuck_entry& m) {
  auto& [kind, model, replica, shard, worker, version, operation, waited_ms, chunks, peers, advice] = m;
  archive(kind, as_name(model), as_name(replica), shard, worker, version, operation, waited_ms, chunks,
          as_sentence(peers), as_sentence(advice));
}

// ---- messages, in the order of `message`

inline void move_field(field_archive& archive, messages::join_request& m) {
  auto& [model, replica, shard, place, spot, temporary, address, capability_key, proof, form, before] = m;
  auto& [transport, consistency, integrity, layout_digest, chunk_bytes, chunk_count, tensors] = form;
  auto& [server, moved, returns, held, operation, reading, receiving, ended_well, decided, latest, peers,
         keeps, barred] = before;
  archive(as_name(model), as_name(replica), shard, place, spot, as_name(transport), as_name(consistency),
          as_name(integrity), address, layout_digest, chunk_bytes, chunk_count,
          as_list(tensors, minimum_tensor_bytes, limits::tensors), held, operation, as_sources(reading),
          receiving, ended_well, decided, latest, peers, keeps, temporary, as_secret(capability_key), server,
          moved, returns, as_list(barred, 8, limits::barred_readers), proof);
}
inline void move_field(field_archive& archive, messages::join_reply& m) {
  auto& [result, epoch, wants_layout, heartbeat_interval_ms, worker_timeout_ms, group_timeout_ms, operation,
         latest, workers] = m;
  archive(result, epoch, wants_layout, heartbeat_interval_ms, worker_timeout_ms, group_timeout_ms, operation,
          latest, workers);
}
inline void move_field(field_archive& archive, messages::publish_request& m) {
  auto& [operation, held] = m;
  archive(operation, held);
}
inline void move_field(field_archive& archive, messages::unpublish_request& m) {
  auto& [version, epoch, operation, leaving] = m;
  archive(version, epoch, operation, leaving);
}
inline void move_field(field_archive& archive, messages::drained_reply& m) {
  auto& [result, finished, moved, cut_off, revoke, lost, refused] = m;
  archive(result, finished, moved, cut_off, revoke, lost, refused);
}
inline void move_field(field_archive& archive, messages::update_request& m) {
  auto& [operation, selector, timeout_ms, reach, shows, ahead] = m;
  archive(operation, selector, timeout_ms, reach, shows, ahead);
}
inline void move_field(field_archive& archive, messages::update_reply& m) {
  auto& [result, operation, keep, version, sources, ordinal, lost, open, root] = m;
  archive(result, operation, keep, version, as_sources(sources), ordinal, lost, open, root);
}
inline void move_field(field_archive& archive, messages::receiving_request& m) {
  auto& [operation, shows] = m;
  archive(operation, shows);
}
inline void move_field(field_archive& archive, messages::holding_request& m) {
  archive(m.held);
}
inline void move_field(field_archive& archive, messages::sources_request& m) {
  auto& [operation, why, lease, reason, detail, chunk] = m;
  archive(operation, why, lease, reason, as_sentence(detail), chunk);
}
inline void move_field(field_archive& archive, messages::lease_released_request& m) {
  auto& [lease] = m;
  archive(lease);
}
inline void move_field(field_archive& archive, messages::finish_request& m) {
  auto& [operation, version, result, intact, held, lease] = m;
  archive(operation, version, result, intact, held, lease);
}
inline void move_field(field_archive& archive, messages::cut_off_done_request& m) {
  auto& [reader] = m;
  archive(reader);
}
inline void move_field(field_archive& archive, messages::wait_request& m) {
  auto& [selector, timeout_ms] = m;
  archive(selector, timeout_ms);
}
inline void move_field(field_archive& archive, messages::version_reply& m) {
  auto& [result, version] = m;
  archive(result, version);
}
inline void move_field(field_archive& archive, messages::list_request& m) {
  auto& [model] = m;
  archive(as_name(model));
}
inline void move_field(field_archive& archive, messages::list_reply& m) {
  auto& [result, models] = m;
  archive(result, as_list(models, minimum_model_entry_bytes));
}
inline void move_field(field_archive& archive, messages::describe_request& m) {
  auto& [model, shard] = m;
  archive(as_name(model), shard);
}
inline void move_field(field_archive& archive, messages::describe_reply& m) {
  auto& [result, shards, chunk_bytes, tensors] = m;
  archive(result, shards, chunk_bytes, as_list(tensors, minimum_tensor_bytes, limits::tensors));
}
inline void move_field(field_archive&, messages::leave_request&) {}
inline void move_field(field_archive& archive, messages::retain_request& m) {
  auto& [keep_latest, pin, release, roll_back_to] = m;
  archive(keep_latest, pin, release, roll_back_to);
}
inline void move_field(field_archive& archive, messages::manage_request& m) {
  auto& [kind, model, replica, change] = m;
  archive(kind, as_name(model), as_name(replica), change);
}
inline void move_field(field_archive& archive, messages::manage_reply& m) {
  auto& [result, workers, readers] = m;
  archive(result, workers, readers);
}
inline void move_field(field_archive& archive, messages::offload_failed_request& m) {
  auto& [version, reason] = m;
  archive(version, reason);
}
inline void move_field(field_archive& archive, messages::committed_push& m) {
  auto& [version, root] = m;
  archive(version, root);
}
inline void move_field(field_archive& archive, messages::retention_push& m) {
  auto& [keeps] = m;
  archive(keeps);
}
inline void move_field(field_archive& archive, messages::offload_push& m) {
  auto& [version, replica] = m;
  archive(version, as_name(replica));
}
inline void move_field(field_archive&, messages::drop_push&) {}
inline void move_field(field_archive& archive, messages::heartbeat_request& m) {
  auto& [chunks, retention] = m;
  archive(chunks, retention);
}
inline void move_field(field_archive& archive, messages::why_request& m) {
  auto& [model, replica, shard] = m;
  archive(as_name(model), as_name(replica), shard);
}
inline void move_field(field_archive& archive, messages::why_reply& m) {
  auto& [result, decisions] = m;
  archive(result, as_sentence(decisions));
}
inline void move_field(field_archive& archive, messages::stuck_request& m) {
  auto& [model, older_than_ms] = m;
  archive(as_name(model), older_than_ms);
}
inline void move_field(field_archive& archive, messages::stuck_reply& m) {
  auto& [result, entries, left_out] = m;
  archive(result, as_list(entries, minimum_stuck_entry_bytes), left_out);
}
inline void move_field(field_archive& archive, messages::heartbeat_reply& m) {
  auto& [epoch, latest, workers] = m;
  archive(epoch, latest, workers);
}
inline void move_field(field_archive& archive, messages::status_reply& m) {
  auto& [result, operation] = m;
  archive(result, operation);
}
inline void move_field(field_archive& archive, messages::version_push& m) {
  auto& [version] = m;
  archive(version);
}
inline void move_field(field_archive& archive, messages::reassign_push& m) {
  auto& [old_lease, source] = m;
  archive(old_lease, source);
}
inline void move_field(field_archive& archive, messages::cut_off_push& m) {
  auto& [reader] = m;
  archive(reader);
}
inline void move_field(field_archive& archive, messages::abort_push& m) {
  auto& [operation, reason] = m;
  archive(operation, reason);
}
inline void move_field(field_archive& archive, messages::goodbye_push& m) {
  auto& [epoch, rejoin, reason, worker] = m;
  archive(epoch, rejoin, reason, worker);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::codec_detail
