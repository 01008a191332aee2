#pragma once
/// \file pull_lane.ipp
/// Definitions of pull_lane.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/pull_lane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::size_t pull_lane::scratch_words(const pull_driver& driver) {
  return look_offset(driver, most_looks) / 8;
}

TENSORHUB_DECL std::size_t pull_lane::blocks_of(const pull_driver& driver) noexcept {
  constexpr std::uint64_t most_bytes = 4u << 20, most_blocks = 4;
  return static_cast<std::size_t>(
      std::clamp<std::uint64_t>(most_bytes / driver.offsets_.total_bytes, 1, most_blocks));
}

TENSORHUB_DECL std::uint64_t pull_lane::block_offset(const pull_driver& driver, std::size_t block) noexcept {
  return (driver.offsets_.total_bytes + 7) / 8 * 8 * block;
}

TENSORHUB_DECL std::uint64_t pull_lane::look_offset(const pull_driver& driver, std::size_t look) noexcept {
  return block_offset(driver, blocks_of(driver)) + look * driver.look_bytes_;
}

TENSORHUB_DECL pull_lane::listed::listed(pull_lane& lane) : lane_{&lane} {
  const std::lock_guard lock{lane_->driver_->mutex_};
  lane_->driver_->lanes_.push_back(lane_);
}

TENSORHUB_DECL pull_lane::listed::~listed() {
  const std::lock_guard lock{lane_->driver_->mutex_};
  std::erase(lane_->driver_->lanes_, lane_);
}

TENSORHUB_DECL pull_lane::pull_lane(pull_driver& driver, lane_id number, std::span<const std::byte> scratch)
    : driver_{&driver}, number_{number}, scratch_{scratch} {
  for (std::size_t look = most_looks; look > 0; --look) free_looks_.push_back(look - 1);
  for (std::size_t block = blocks_of(driver); block > 0; --block) free_blocks_.push_back(block - 1);
}

TENSORHUB_DECL pull_lane::~pull_lane() = default;

// ---- reports and ends

TENSORHUB_DECL bool pull_lane::report() {
  std::vector<closing_endpoint> closing;
  findings found;
  {
    const std::lock_guard lock{driver_->mutex_};
    found = take_findings();
    for (channel_record& channel : channels_) {
      const bool is_over = driver_->core_.is_lost(channel.slot) || driver_->core_.is_idle(channel.slot);
      if (channel.is_open() && is_over) closing.push_back(close_channel(channel));
    }
    if (!closing.empty() || !found.empty()) driver_->core_.leave_reads(number_);
  }
  tell(found);
  const bool has_closed = !closing.empty();
  close_all(std::move(closing));
  return has_closed;
}

TENSORHUB_DECL pull_lane::findings pull_lane::take_findings() {
  auto& sources = driver_->sources_;
  findings found;
  while (auto failure = driver_->core_.take_failure()) {
    found.failed.push_back(*std::move(failure));
    source_failure& last = found.failed.back();
    last.detail = sources[last.slot].target.name + ": " + last.detail;
    if (const std::string& through = sources[last.slot].failed_here; !through.empty())
      last.detail += ", through " + through;
  }
  for (source_slot slot = 0; slot < sources.size(); ++slot) {
    if (!sources[slot].report_release || !driver_->core_.is_idle(slot)) continue;
    sources[slot].report_release = false;
    found.released.push_back(sources[slot].target.facts.lease);
  }
  if (has_connected_ && driver_->core_.take_stall(pull_driver::now()))
    found.stall = driver_->describe_stall();
  found.is_short = driver_->core_.take_shortage(pull_driver::now());
  return found;
}

TENSORHUB_DECL void pull_lane::tell(const findings& found) const {
  const source_events& to = driver_->handlers_;
  if (to.source_failed) {
    for (const source_failure& failure : found.failed) to.source_failed(failure);
  }
  if (to.source_released) {
    for (const lease_id lease : found.released) to.source_released(lease);
  }
  if (!found.stall.empty() && to.stalled) to.stalled(found.stall);
  if (found.is_short && to.ran_short) to.ran_short();
}

TENSORHUB_DECL pull_lane::closing_endpoint pull_lane::close_channel(channel_record& channel) {
  driver_->note_path(channel.slot, path(channel.look));
  closing_endpoint out{channel.look, {}};
  if (channel.outstanding == 0) {
    free_looks_.push_back(channel.look);
    const pull_target& target = driver_->sources_[channel.slot].target;
    if (!driver_->core_.is_lost(channel.slot)) out.keeps_as = ends_of(target);
  }
  channel.state = channel_state::closed;
  return out;
}

TENSORHUB_DECL connection_ends pull_lane::ends_of(const pull_target& target) const {
  return {target.address.text, target.facts.holder, driver_->options_.reader};
}

TENSORHUB_DECL void pull_lane::close_all(std::vector<closing_endpoint> endpoints) {
  for (closing_endpoint& each : endpoints) {
    if (each.keeps_as)
      keep(each.look, *std::move(each.keeps_as));
    else
      close(each.look);
  }
}

TENSORHUB_DECL void pull_lane::leave() {
  std::vector<closing_endpoint> closing;
  {
    const std::lock_guard lock{driver_->mutex_};
    for (channel_record& channel : channels_)
      if (channel.is_open()) closing.push_back(close_channel(channel));
  }
  close_all(std::move(closing));
}

TENSORHUB_DECL bool pull_lane::finished() const {
  const std::lock_guard lock{driver_->mutex_};
  return driver_->stopped_ || driver_->core_.done();
}

TENSORHUB_DECL duration pull_lane::time_to_wait() const {
  time_point due = time_point::never();
  {
    const std::lock_guard lock{driver_->mutex_};
    for (const channel_record& channel : channels_) {
      if (channel.is_open()) due = std::min(due, driver_->core_.due(channel.id));
    }
  }
  if (due == time_point::never()) return idle_wait;
  return std::clamp<duration>(due - pull_driver::now(), duration::zero(), idle_wait);
}

// ---- connections

TENSORHUB_DECL bool pull_lane::open_channels() {
  for (channel_record& channel : channels_) {
    if (has_ended_unread(channel)) close_stale(channel);
    if (channel.state == channel_state::stale) connect_again(channel);
  }
  bool again = false;
  while (!again) {
    const next_contact next = find_contact();
    again = next.attempt ? open_channel(*next.attempt, next.target) : next.reports_first;
    if (!next.attempt) break;
  }
  has_connected_ = true;
  return again;
}

TENSORHUB_DECL pull_lane::next_contact pull_lane::find_contact() {
  const std::lock_guard lock{driver_->mutex_};
  next_contact next;
  if (driver_->stopped_ || driver_->core_.done()) return next;
  if (free_looks_.empty() || channels_.size() == most_channels) return next;
  next.reports_first = driver_->has_released();
  if (!next.reports_first) next.attempt = driver_->contacts_.next(number_);
  if (next.attempt) next.target = driver_->sources_[next.attempt->slot].target;
  return next;
}

TENSORHUB_DECL bool pull_lane::open_channel(const pull_contacts::attempt& attempt,
                                            const pull_target& target) {
  const std::size_t look = free_looks_.back();
  try {
    const connected made = connect(look, target, ends_of(target), driver_->in_time(attempt.patience), true);
    const std::lock_guard lock{driver_->mutex_};
    const channel_id id = driver_->contacts_.made(number_, attempt, made.ordered_read_bytes);
    channels_.push_back({attempt.slot, id, look, target.facts.far, channel_state::open});
    if (made.is_kept) channels_.back().reused = pull_driver::now();
    free_looks_.pop_back();
    driver_->note_path(attempt.slot, path(look));
    if (attempt.explores) driver_->wake_all();
    return false;
  } catch (const error& e) {
    const std::lock_guard lock{driver_->mutex_};
    const bool again = driver_->contacts_.failed(number_, attempt, e.code(), e.sentence());
    driver_->wake_all();
    return again;
  }
}

TENSORHUB_DECL bool pull_lane::has_ended_unread(const channel_record& channel) const noexcept {
  return channel.is_open() && channel.is_made_again() && channel.outstanding == 0 && !usable(channel.look);
}

TENSORHUB_DECL bool pull_lane::give_back_stale(channel_record& channel, const pull_task& task,
                                               completion_status status) {
  const bool is_lost = status == completion_status::peer_lost;
  const bool was_stale = channel.reused != time_point{} &&
                         (is_lost || status == completion_status::cut_off) &&
                         pull_driver::now() - channel.reused < soon;
  if (!was_stale && !(is_lost && channel.is_far && !channel.is_replacement)) {
    channel.reused = {};
    const bool advances = task.kind == pull_task::kind_type::chunk && status == completion_status::ok;
    channel.is_replacement = channel.is_replacement && !advances;
    return false;
  }
  {
    const std::lock_guard lock{driver_->mutex_};
    if (driver_->core_.is_lost(channel.slot)) return false;  // the core waits for this read to end
    give_back(channel, task);
    driver_->wake_all(this);
  }
  if (channel.outstanding == 0) close_stale(channel);
  return true;
}

TENSORHUB_DECL void pull_lane::close_stale(channel_record& channel) {
  {
    const std::lock_guard lock{driver_->mutex_};
    driver_->core_.leave_reads(number_);
  }
  close(channel.look);
  channel.state = channel_state::stale;
}

TENSORHUB_DECL void pull_lane::connect_again(channel_record& channel) {
  channel.state = channel_state::closed;
  channel.reused = {};
  channel.is_replacement = true;
  pull_target target;
  duration patience{};
  {
    const std::lock_guard lock{driver_->mutex_};
    target = driver_->sources_[channel.slot].target;
    patience = driver_->contacts_.patience_for(channel.slot);
    if (channel.is_far) patience = std::min(patience, longest_far_attempt);
    driver_->core_.leave_reads(number_);
    if (driver_->core_.is_lost(channel.slot) || driver_->core_.is_idle(channel.slot))
      return free_looks_.push_back(channel.look);
  }
  try {
    const connected made = connect(channel.look, target, ends_of(target), driver_->in_time(patience), false);
    channel.state = channel_state::open;
    const std::lock_guard lock{driver_->mutex_};
    driver_->core_.reconnected(channel.id, made.ordered_read_bytes);
  } catch (const error& e) {
    free_looks_.push_back(channel.look);
    const std::lock_guard lock{driver_->mutex_};
    driver_->contacts_.lose(channel.slot, e.code(), e.sentence());
    driver_->wake_all();
  }
}

// ---- reads

TENSORHUB_DECL bool pull_lane::may_read(std::size_t channel) const noexcept {
  const channel_record& through = channels_[channel];
  return through.is_open() && (!through.is_made_again() || usable(through.look));
}

TENSORHUB_DECL std::span<const pull_lane::read_task> pull_lane::take_tasks(std::size_t channel) {
  channel_record& through = channels_[channel];
  tasks_.clear();
  const std::lock_guard lock{driver_->mutex_};
  pull& core = driver_->core_;
  while (tasks_.size() < tasks_at_once) {
    const auto task = core.next(through.id, pull_driver::now());
    if (core.has_failure()) driver_->wake_all();  // a slow source was dropped: other lanes read from it
    if (!task) break;
    const bool is_block = task->kind == pull_task::kind_type::block;
    if (is_block && free_blocks_.empty()) {
      core.not_posted(through.id, *task);
      break;
    }
    const bool is_chunk = task->kind == pull_task::kind_type::chunk;
    const remote_region& from =
        is_chunk ? core.segments(through.slot)[driver_->layout_->slice(task->chunk).segment]
                 : driver_->sources_[through.slot].target.control;
    tasks_.push_back({*task, &from});
    if (is_block) {
      through.block = free_blocks_.back();
      free_blocks_.pop_back();
    }
  }
  return tasks_;
}

TENSORHUB_DECL void pull_lane::posted(std::size_t channel, const pull_task& task) {
  channel_record& through = channels_[channel];
  if (through.reused != time_point{} && through.outstanding == 0) through.reused = pull_driver::now();
  ++through.outstanding;
  if (driver_->handlers_.traced && task.kind == pull_task::kind_type::chunk)
    posted_at_[task.chunk] = pull_driver::now();
}

TENSORHUB_DECL void pull_lane::not_posted(std::size_t channel, std::size_t first) {
  const std::lock_guard lock{driver_->mutex_};
  for (std::size_t left = tasks_.size(); left > first; --left)
    give_back(channels_[channel], tasks_[left - 1].what);
  if (first > 0) driver_->wake_all(this);  // others may have looked meanwhile
}

TENSORHUB_DECL void pull_lane::give_back(const channel_record& channel, const pull_task& task) {
  if (task.kind == pull_task::kind_type::block) free_blocks_.push_back(channel.block);
  driver_->core_.not_posted(channel.id, task);
}

TENSORHUB_DECL pull_lane::scratch_range pull_lane::scratch_of(std::size_t channel,
                                                              pull_task::kind_type kind) const noexcept {
  if (kind == pull_task::kind_type::block)
    return {block_offset(*driver_, channels_[channel].block), driver_->offsets_.total_bytes};
  const bool is_map = kind == pull_task::kind_type::map;
  return {look_offset(*driver_, channels_[channel].look),
          is_map ? driver_->look_bytes_ : sizeof(control_header)};
}

TENSORHUB_DECL bool pull_lane::ended(const request& read, completion_status status) {
  channel_record& channel = channels_[read.channel];
  if (--channel.outstanding == 0 && !channel.is_open()) free_looks_.push_back(channel.look);
  if (status == completion_status::local_error && channel.is_open()) {
    const std::lock_guard lock{driver_->mutex_};
    driver_->sources_[channel.slot].failed_here = path(channel.look);
  }
  return !channel.is_open() || !give_back_stale(channel, read.what, status);
}

TENSORHUB_DECL void pull_lane::look_arrived(const request& read, completion_status status) {
  const channel_record& channel = channels_[read.channel];
  const scratch_range range = scratch_of(read.channel, read.what.kind);
  const auto bytes = scratch_.subspan(range.offset, range.bytes);
  const bool is_block = read.what.kind == pull_task::kind_type::block;
  digest128 root;
  if (is_block && driver_->digests_.enabled && status == completion_status::ok)
    root =
        driver_->digests_.root(driver_->digests_.seeds.root, read_control_digests(bytes, *driver_->layout_));
  const std::lock_guard lock{driver_->mutex_};
  pull& core = driver_->core_;
  const time_point now = pull_driver::now();
  if (is_block) {
    free_blocks_.push_back(channel.block);
    const bool believed = core.block_arrived(channel.id, status, bytes, root, now);
    if (believed && !std::exchange(driver_->showing_, true) && driver_->handlers_.believed)
      driver_->handlers_.believed(core.table());
  } else if (read.what.kind == pull_task::kind_type::map) {
    if (core.map_arrived(channel.id, status, bytes, now)) driver_->wake_all(this);
  } else if (core.header_arrived(channel.id, status, bytes, now)) {
    driver_->wake_all(this);
  }
  driver_->show_confirmed(channel.slot);
  if (is_block) driver_->wake_all();
}

TENSORHUB_DECL void pull_lane::chunk_arrived(const request& read, completion_status status,
                                             const digest128& digest) {
  const channel_record& channel = channels_[read.channel];
  const time_point at = pull_driver::now();
  if (driver_->handlers_.traced) trace(channel, read.what.chunk, status, at);
  const std::lock_guard lock{driver_->mutex_};
  measure(channel);
  if (driver_->core_.chunk_arrived(channel.id, read.what.chunk, status, digest, at)) driver_->wake_all(this);
  driver_->show_confirmed(channel.slot);
}

TENSORHUB_DECL void pull_lane::batch_arrived(const batch& digested, std::span<const digest128> made) {
  const time_point at = pull_driver::now();
  const std::size_t count = digested.chunks.size();
  for (std::size_t i = 0; driver_->handlers_.traced && i < count; ++i)
    if (digested.through[i] != no_channel)
      trace(channels_[digested.through[i]], digested.chunks[i].chunk, completion_status::ok, at);
  const std::lock_guard lock{driver_->mutex_};
  for (std::size_t i = 0; i < count; ++i) {
    const chunk_index chunk = digested.chunks[i].chunk;
    if (digested.through[i] == no_channel) {
      note_checked(chunk, made[i]);
      continue;
    }
    const channel_record& channel = channels_[digested.through[i]];
    measure(channel);
    if (driver_->core_.chunk_arrived(channel.id, chunk, completion_status::ok, made[i], at))
      driver_->wake_all(this);
    driver_->show_confirmed(channel.slot);
  }
}

TENSORHUB_DECL std::optional<chunk_index> pull_lane::take_check() {
  const std::lock_guard lock{driver_->mutex_};
  return driver_->core_.next_check();
}

TENSORHUB_DECL void pull_lane::checked(chunk_index chunk, const digest128& digest) {
  const std::lock_guard lock{driver_->mutex_};
  note_checked(chunk, digest);
}

TENSORHUB_DECL void pull_lane::note_checked(chunk_index chunk, const digest128& digest) {
  if (driver_->core_.checked(chunk, digest, pull_driver::now())) driver_->wake_all(this);
  driver_->show_confirmed();
}

TENSORHUB_DECL void pull_lane::measure(const channel_record& channel) {
  pull& core = driver_->core_;
  if (core.facts(channel.slot).far && channel.is_open()) core.measured(channel.id, round_trip(channel.look));
}

TENSORHUB_DECL void pull_lane::trace(const channel_record& channel, chunk_index chunk,
                                     completion_status status, time_point at) {
  const chunk_event event{chunk, name_of(channel.slot), number_, posted_at_[chunk], at, status};
  posted_at_.erase(chunk);
  try {
    driver_->handlers_.traced(event);
  } catch (...) {
    throw error(errc::system_failed,
                "the trace callback of the worker's options has thrown, which ends the transfer: " +
                    detail::exception_text());
  }
}

TENSORHUB_DECL std::string_view pull_lane::name_of(source_slot slot) const {
  const std::lock_guard lock{driver_->mutex_};
  return driver_->sources_[slot].target.name;  // the string does not move
}

}  // namespace tensorhub::inline TENSORHUB_MODE
