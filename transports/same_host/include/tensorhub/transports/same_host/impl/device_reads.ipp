#pragma once
/// \file device_reads.ipp
/// Definitions of device_reads.hpp.

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tensorhub/detail/peer_read.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/transports/same_host/device_reads.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL device_reads::device_reads(copy_pool& pool, work_queue& queue, std::size_t depth,
                                          std::function<std::vector<device_access*>()> devices)
    : pool_{&pool}, queue_{&queue}, devices_{std::move(devices)} {
  active_.reserve(depth);
}

TENSORHUB_DECL void device_reads::start(read_record& read) noexcept {
  pool_->begin_elsewhere(read);
  active_.push_back(&read);  // reserved
  begin(read);
  if (is_over(read)) end(read);
}

TENSORHUB_DECL void device_reads::work() noexcept {
  for (std::size_t i = 0; i < lanes_.size(); ++i) land(*lanes_[i]);
  const link* alive = nullptr;
  for (std::size_t i = 0; i < active_.size();) {
    read_record& read = *active_[i];
    if (read.part.failure == completion_status::ok) advance(read);
    if (is_over(read)) {
      end(read, alive);  // also removes it from the list
    } else {
      ++i;
    }
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i) send(*lanes_[i]);
}

TENSORHUB_DECL bool device_reads::can_work() const noexcept {
  if (detail::any_of(lanes_, [](const auto& each) { return !each->gathered.empty(); })) return true;
  return detail::any_of(active_, [](const read_record* read) {
    const device_part& part = read->part;
    if (part.failure != completion_status::ok) return part.in_flight == 0;
    const bool has_more = part.next < read->bytes;
    if (part.way == way_type::bounced)
      return has_more && detail::any_of(part.lane->bounces, [](const auto& b) { return !b.in_use; });
    if (part.way != way_type::staged) return false;
    return detail::any_of(read->connection->slots(), [&](const stage_slot& slot) {
      if (slot.state == stage_slot::state_type::free) return has_more;
      return slot.owner == read && slot.state != stage_slot::state_type::asked && !is_flying(*read, slot);
    });
  });
}

TENSORHUB_DECL bool device_reads::is_flying() const noexcept {
  return detail::any_of(lanes_, [](const auto& each) { return !each->flying.empty(); });
}

TENSORHUB_DECL bool device_reads::wait_a_little(duration longest) noexcept {
  device_lane_record* first = nullptr;
  for (const auto& each : lanes_) {
    if (each->flying.empty()) continue;
    if (state_of(*each) != lane_state::pending) return true;
    if (first == nullptr) first = each.get();
  }
  return first != nullptr && first->lane->wait(first->flying.front().ticket, longest) != lane_state::pending;
}

TENSORHUB_DECL void device_reads::give_up(const endpoint_core& endpoint, completion_status why) noexcept {
  for (std::size_t i = active_.size(); i-- > 0;) {
    read_record& read = *active_[i];
    if (read.endpoint != &endpoint) continue;
    drop_gathered(read);
    fail(read, why);
    if (is_over(read)) end(read);
  }
}

TENSORHUB_DECL void device_reads::settle(const endpoint_core& endpoint) noexcept {
  give_up(endpoint, completion_status::cancelled);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    device_lane_record& each = *lanes_[i];
    while (has_pieces_of(each, endpoint)) {
      const bool is_dead =
          state_of(each) == lane_state::pending &&
          each.lane->wait(each.flying.front().ticket, device_lane::patience) == lane_state::pending;
      is_dead ? start_again(each) : land(each);
    }
  }
  give_up(endpoint, completion_status::cancelled);
}

TENSORHUB_DECL lane_state device_reads::state_of(device_lane_record& lane) noexcept {
  const lane_ticket ticket = lane.flying.front().ticket;
  return ticket == 0 ? lane_state::failed : lane.lane->state(ticket);
}

TENSORHUB_DECL bool device_reads::has_pieces_of(const device_lane_record& lane,
                                                const endpoint_core& endpoint) noexcept {
  return detail::any_of(lane.flying, [&](const auto& piece) { return piece.read->endpoint == &endpoint; });
}

TENSORHUB_DECL bool device_reads::is_flying(const read_record& read, const stage_slot& slot) noexcept {
  return read.part.lane != nullptr &&
         detail::any_of(read.part.lane->flying, [&](const auto& piece) { return piece.slot == &slot; });
}

TENSORHUB_DECL bool device_reads::is_over(const read_record& read) noexcept {
  const device_part& part = read.part;
  return part.in_flight == 0 &&
         (part.failure != completion_status::ok || (part.next == read.bytes && part.landed == read.bytes));
}

TENSORHUB_DECL device_lane_record& device_reads::lane_of(device_access& device) {
  for (const auto& each : lanes_) {
    if (each->device != &device) continue;
    if (!each->lane) each->lane = device.open_lane();
    return *each;
  }
  auto fresh = std::make_unique<device_lane_record>();
  fresh->device = &device;
  fresh->lane = device.open_lane();
  lanes_.push_back(std::move(fresh));
  return *lanes_.back();
}

TENSORHUB_DECL void device_reads::begin(read_record& read) noexcept {
  read.part = {};
  try {
    choose_way(read);
  } catch (...) {  // no memory, or no lane
    fail(read, completion_status::local_error);
  }
}

TENSORHUB_DECL void device_reads::choose_way(read_record& read) {
  const region_view& region = *read.region;
  device_part& part = read.part;
  if (region.memory == region_memory::host) {
    part.lane = &lane_of(*read.device);
    if (region.file && region.file->data() != nullptr) return copy_from_file(read, *region.file);
    part.way = way_type::bounced;
    return advance(read);
  }
  for (device_access* const device : candidates(read)) {
    const std::byte* const first = read.connection->map(region, *device);
    if (first == nullptr) continue;
    part.lane = &lane_of(*device);
    return copy_at_once(read, first);
  }
  if (read.connection->why().empty()) read.connection->note(why_staged(read));
  part.way = way_type::staged;
  if (read.device != nullptr) part.lane = &lane_of(*read.device);
  advance(read);
}

TENSORHUB_DECL std::string device_reads::why_staged(const read_record& read) {
  const region_view& region = *read.region;
  if (!region.why.empty()) return region.why;
  if (!region.mapped.empty()) return region.mapped.front().why;
  return read.device == nullptr ? "no device is known here that could map it" : "the option device says so";
}

TENSORHUB_DECL std::vector<device_access*> device_reads::candidates(const read_record& read) const {
  if (read.device != nullptr) return {read.device};
  if (lanes_.empty()) return devices_();
  std::vector<device_access*> out;
  for (const auto& each : lanes_) out.push_back(each->device);
  return out;
}

TENSORHUB_DECL void device_reads::copy_from_file(read_record& read, const remote_file& file) {
  const completion_status before = read.connection->permission(*read.region);
  if (before != completion_status::ok) return fail(read, before);
  const std::uint64_t begin = read.region->file_offset + read.offset;
  for (std::uint64_t at = 0; at < read.bytes;) {
    const std::uint64_t left_of_slice = remote_file::slice_bytes - (begin + at) % remote_file::slice_bytes;
    const std::uint64_t bytes = std::min(read.bytes - at, left_of_slice);
    file.expect_copy(*read.device, begin + at, bytes);
    gather(read, {read.target + at, file.data() + begin + at, bytes});
    at += bytes;
  }
  read.part.next = read.bytes;
}

TENSORHUB_DECL void device_reads::copy_at_once(read_record& read, const std::byte* first) {
  const completion_status before = read.connection->permission(*read.region);
  if (before != completion_status::ok) return fail(read, before);
  if (read.bytes > 0) gather(read, {read.target, first + read.offset, read.bytes});
  read.part.next = read.bytes;
}

TENSORHUB_DECL void device_reads::gather(read_record& read, const copy_run& run) {
  read.part.lane->gathered.push_back({&read, run});
  ++read.part.in_flight;
}

TENSORHUB_DECL void device_reads::drop_gathered(read_record& read) noexcept {
  if (read.part.lane == nullptr) return;
  const std::size_t dropped =
      std::erase_if(read.part.lane->gathered, [&](const auto& each) { return each.read == &read; });
  read.part.in_flight -= static_cast<std::uint32_t>(dropped);
}

TENSORHUB_DECL void device_reads::send(device_lane_record& on) noexcept {
  if (on.gathered.empty()) return;
  const std::size_t flying = on.flying.size();
  try {
    runs_.clear();
    for (const auto& each : on.gathered) runs_.push_back(each.run);
    const bool together = !on.sends_one_by_one;
    for (const auto& each : on.gathered)
      on.flying.push_back({each.read, 0, each.run.bytes, nullptr, nullptr, together});
    const lane_ticket ticket = together ? on.lane->copy_all(runs_) : 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const copy_run& run = runs_[i];
      on.flying[flying + i].ticket = together ? ticket : on.lane->copy(run.to, run.from, run.bytes);
    }
    on.gathered.clear();
  } catch (...) {  // no memory for the lists; nothing was sent
    while (on.flying.size() > flying) on.flying.pop_back();
    for (const auto& each : on.gathered) {
      --each.read->part.in_flight;
      fail(*each.read, completion_status::local_error);
    }
    on.gathered.clear();
  }
}

TENSORHUB_DECL void device_reads::advance(read_record& read) noexcept {
  if (read.part.way == way_type::bounced) bounce(read);
  if (read.part.way == way_type::staged) stage(read);
}

TENSORHUB_DECL void device_reads::bounce(read_record& read) noexcept {
  device_part& part = read.part;
  for (int i = 0; i < pieces_at_once && part.next < read.bytes; ++i) {
    auto& bounces = part.lane->bounces;
    const auto free = detail::find_if(bounces, [](const auto& each) { return !each.in_use; });
    if (free == bounces.end()) return;
    try {
      if (free->memory.data() == nullptr)
        free->memory = pinned_memory{*part.lane->device, device_lane_record::bounce_bytes};
    } catch (...) {
      return fail(read, completion_status::local_error);
    }
    const std::uint64_t at = part.next;
    const std::uint64_t bytes = std::min(device_lane_record::bounce_bytes, read.bytes - at);
    const completion_status status =
        read.connection->copy(*read.region, read.offset + at, free->memory.data(), bytes, false);
    if (status != completion_status::ok) return fail(read, status);
    part.next += bytes;
    free->in_use = true;
    fly(read, at, free->memory.data(), bytes, &*free, nullptr);
  }
}

TENSORHUB_DECL void device_reads::stage(read_record& read) noexcept {
  device_part& part = read.part;
  link& connection = *read.connection;
  for (stage_slot& slot : connection.slots()) {
    if (slot.owner != &read || is_flying(read, slot)) continue;
    switch (slot.state) {
      case stage_slot::state_type::denied:
        return fail(read, completion_status::access_denied);
      case stage_slot::state_type::failed:  // no other reader can get it either
        return fail(read, completion_status::peer_lost);
      case stage_slot::state_type::ready:
        if (part.lane != nullptr) {
          if (slot.bytes >= worth_pinning_bytes) connection.pin_staged(*part.lane->device);
          fly(read, slot.at, connection.staged(slot), slot.bytes, nullptr, &slot);
        } else {
          const detail::peer_read reading;
          std::memcpy(read.target + slot.at, connection.staged(slot), slot.bytes);
          part.landed += slot.bytes;
          slot = {};
        }
        break;
      default:
        break;
    }
    if (part.failure != completion_status::ok) return;
  }
  while (part.next < read.bytes) {
    const std::uint64_t bytes = std::min(stage_piece_bytes, read.bytes - part.next);
    if (!connection.stage(*read.region, &read, read.offset, part.next, bytes)) {
      if (errno == EAGAIN) return;
      const completion_status state = connection.state();
      return fail(read, state == completion_status::ok ? completion_status::peer_lost : state);
    }
    part.next += bytes;
  }
}

TENSORHUB_DECL void device_reads::fly(read_record& read, std::uint64_t at, const std::byte* from,
                                      std::uint64_t bytes, device_lane_record::bounce_piece* bounce,
                                      stage_slot* slot) noexcept {
  device_lane_record& on = *read.part.lane;
  try {
    if (!on.lane) on.lane = on.device->open_lane();
    on.flying.push_back({&read, 0, bytes, bounce, slot, false});
  } catch (...) {
    if (bounce != nullptr) bounce->in_use = false;
    return fail(read, completion_status::local_error);
  }
  ++read.part.in_flight;
  on.flying.back().ticket = on.lane->copy(read.target + at, from, bytes);
}

TENSORHUB_DECL void device_reads::take_down(const device_lane_record::piece& piece) noexcept {
  --piece.read->part.in_flight;
  if (piece.bounce != nullptr) piece.bounce->in_use = false;
  if (piece.slot != nullptr) *piece.slot = {};
}

TENSORHUB_DECL void device_reads::land(device_lane_record& on) noexcept {
  if (on.flying.empty()) return;  // nothing has shown yet that the lane is well
  while (!on.flying.empty()) {
    const lane_state state = state_of(on);
    if (state == lane_state::pending) return;
    if (state == lane_state::failed) return start_again(on);
    const device_lane_record::piece piece = on.flying.front();
    on.flying.pop_front();
    take_down(piece);
    piece.read->part.landed += piece.bytes;
  }
  on.sends_one_by_one = false;
}

TENSORHUB_DECL void device_reads::start_again(device_lane_record& on) noexcept {
  on.lane.reset();  // it writes nothing any more, unless the device hangs (device_lane::patience)
  read_record& culprit = *on.flying.front().read;
  const bool is_known = !on.flying.front().together;
  for (const auto& piece : on.flying) take_down(piece);
  on.flying.clear();
  for (const auto& each : on.gathered) --each.read->part.in_flight;
  on.gathered.clear();
  if (is_known)
    fail(culprit, culprit.connection->verdict(*culprit.region, EIO));
  else
    on.sends_one_by_one = true;
  for (read_record* const read : active_) {
    if (read->part.lane != &on || read->part.failure != completion_status::ok) continue;
    if (read->part.next == read->bytes && read->part.landed == read->bytes) continue;
    read->connection->forget(read);
    begin(*read);
  }
}

TENSORHUB_DECL void device_reads::end(read_record& read) noexcept {
  const link* unknown = nullptr;
  end(read, unknown);
}

TENSORHUB_DECL void device_reads::end(read_record& read, const link*& alive) noexcept {
  std::erase(active_, &read);
  link& connection = *read.connection;
  connection.forget(&read);
  const bool has_landed_before = read.part.way == way_type::direct && alive == &connection;
  completion_status status = read.part.failure;
  if (status == completion_status::ok) status = connection.verdict(*read.region, 0, has_landed_before);
  if (status == completion_status::ok && read.part.way == way_type::direct) alive = &connection;
  pool_->end_elsewhere(*queue_, read, status);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
