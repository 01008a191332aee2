#pragma once
/// \file chunk_digests.ipp
/// Definitions of chunk_digests.hpp.

#include "tensorhub/error.hpp"
#include "tensorhub/transfer/chunk_digests.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL batch_digests::batch_digests(const digest_functions& policy) : policy_{policy} {}
TENSORHUB_DECL batch_digests::~batch_digests() = default;

TENSORHUB_DECL void batch_digests::make(std::uint64_t seed, std::span<const placed_chunk> chunks,
                                        std::span<digest128> out) {
  begin(seed, chunks, out);
  finish();
}

TENSORHUB_DECL void batch_digests::begin(std::uint64_t seed, std::span<const placed_chunk> chunks,
                                         std::span<digest128> out) {
  try {
    for (std::size_t begin = 0; begin < chunks.size();) {
      std::size_t end = begin;
      while (end < chunks.size() && chunks[end].device == chunks[begin].device) ++end;
      const auto batch = chunks.subspan(begin, end - begin);
      if (batch.front().device == nullptr) {
        for (std::size_t i = 0; i < batch.size(); ++i) out[begin + i] = policy_.by_cpu(seed, batch[i]);
      } else {
        by_device(seed, batch, out.subspan(begin, batch.size()));
      }
      begin = end;
    }
  } catch (...) {
    drop();
    throw;
  }
}

TENSORHUB_DECL bool batch_digests::finished(duration patience) {
  for (; !begun_.empty(); begun_.pop_back()) {
    const batch_record& last = begun_.back();
    if (!is_done(last, patience)) return false;
    for (digest128& each : last.out) each = detail::never_zero(each);
  }
  return true;
}

TENSORHUB_DECL void batch_digests::by_device(std::uint64_t seed, std::span<const placed_chunk> batch,
                                             std::span<digest128> out) {
  device_access& device = *batch.front().device;
  device_state& with = devices_[&device];
  if (!with.lane) with.lane = device.open_lane();
  if (policy_.key != nullptr) {
    keyed_jobs_.clear();
    for (const placed_chunk& each : batch)
      keyed_jobs_.push_back({each.data, each.bytes, policy_.key(seed, each.chunk)});
    return note(with, with.lane->keyed_digest(keyed_jobs_, out.data()), batch, out);
  }
  if (policy_.seed != nullptr) {
    jobs_.clear();
    for (const placed_chunk& each : batch)
      jobs_.push_back({each.data, each.bytes, policy_.seed(seed, each.chunk)});
    return note(with, with.lane->digest(jobs_, out.data()), batch, out);
  }
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (with.scratch.bytes() < batch[i].bytes) with.scratch = pinned_memory{device, batch[i].bytes};
    note(with, with.lane->copy(with.scratch.data(), batch[i].data, batch[i].bytes), batch.subspan(i, 1), {});
    finish();
    out[i] = policy_.by_cpu(seed, {batch[i].chunk, with.scratch.data(), batch[i].bytes, nullptr});
  }
}

TENSORHUB_DECL void batch_digests::finish() {
  while (!finished(device_lane::patience)) {
  }
}

TENSORHUB_DECL void batch_digests::note(device_state& with, lane_ticket ticket,
                                        std::span<const placed_chunk> batch, std::span<digest128> out) {
  begun_.push_back({&with, ticket, clock::now() + device_lane::patience, batch.front(), out});
}

TENSORHUB_DECL bool batch_digests::is_done(const batch_record& batch, duration patience) {
  device_lane& lane = *batch.with->lane;
  lane_state state = lane_state::failed;
  if (batch.ticket != 0)
    state = patience.count() > 0 ? lane.wait(batch.ticket, patience) : lane.state(batch.ticket);
  if (state == lane_state::done) return true;
  if (state == lane_state::pending && clock::now() < batch.until) return false;
  give_up(batch, state);
}

TENSORHUB_DECL void batch_digests::drop() noexcept {
  for (auto& [device, with] : devices_) with.lane.reset();
  begun_.clear();
}

TENSORHUB_DECL void batch_digests::give_up(const batch_record& batch, lane_state state) {
  const placed_chunk first = batch.first;
  std::string why = state == lane_state::pending
                        ? "no answer for " + std::to_string(device_lane::patience.count()) + " s"
                        : batch.with->lane->trouble();
  drop();
  error_context context;
  context.chunk = first.chunk;
  throw error(errc::system_failed,
              first.device->description() + " could not compute digests from chunk " +
                  std::to_string(first.chunk) + " on: " + why +
                  "; retry, and restart the process if the device keeps failing",
              std::move(context));
}

}  // namespace tensorhub::inline TENSORHUB_MODE
