#pragma once
/// \file offloads.ipp
/// What worker/offloads.hpp declares.

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "tensorhub/detail/available_memory.hpp"
#include "tensorhub/detail/thread_name.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/worker/offloads.hpp"
#include "tensorhub/worker/session_orders.hpp"
#include "tensorhub/worker/stall_watch.hpp"
#include "tensorhub/worker/state.hpp"
#include "tensorhub/worker/update_handle.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL offloads::offloads(worker_state& owner, worker_options options, worker_policies policies,
                                  refusal refuse)
    : owner_{&owner},
      options_{std::move(options)},
      policies_{std::move(policies)},
      refuse_{[refuse = std::move(refuse)](version_number version, messages::status why) {
        try {
          refuse(version, std::move(why));
        } catch (...) {  // no memory: the server asks somebody else when it hears nothing
        }
      }} {}

TENSORHUB_DECL offloads::~offloads() {
  close();
}

TENSORHUB_DECL void offloads::take(version_number version, std::string replica,
                                   std::span<const tensor_spec> tensors) {
  const std::lock_guard lock{mutex_};
  if (closed_) return;
  forget_done();
  const bool is_known = detail::any_of(
      kept_, [&](const auto& each) { return each->version == version && each->at == kept::phase::keeping; });
  if (is_known) return;
  kept_.push_back(std::make_unique<kept>());
  kept& added = *kept_.back();
  added.version = version;
  added.memory = take_spare();
  try {
    added.thread =
        std::jthread{[this, &added, replica = std::move(replica),
                      specs = std::vector(tensors.begin(), tensors.end())] { run(added, replica, specs); }};
  } catch (...) {
    kept_.pop_back();
    throw;
  }
}

TENSORHUB_DECL void offloads::begin_leave(std::chrono::steady_clock::time_point until) {
  const std::lock_guard lock{mutex_};
  for (const auto& each : kept_) {
    each->until = until;
    each->over = true;
  }
  changed_.notify_all();
}

TENSORHUB_DECL void offloads::leave(std::chrono::steady_clock::time_point until) {
  begin_leave(until);
  std::unique_lock lock{mutex_};
  changed_.wait_until(lock, until, [this] { return keeps_nothing(); });
}

TENSORHUB_DECL void offloads::close() {
  static constexpr std::chrono::milliseconds repeat_interval{20};  // an interrupt may come too early
  std::list<std::unique_ptr<kept>> ending;
  std::unique_lock lock{mutex_};
  closed_ = true;
  lock.unlock();
  begin_leave(std::chrono::steady_clock::now());
  lock.lock();
  while (!keeps_nothing()) {  // a leave that has begun may have a later end
    lock.unlock();
    for (const auto& each : kept_) each->hasten();  // nobody adds or erases any more
    lock.lock();
    changed_.wait_for(lock, repeat_interval, [this] { return keeps_nothing(); });
  }
  ending.swap(kept_);
  lock.unlock();
}  // their threads are joined here, without the lock

TENSORHUB_DECL bool offloads::keeps_nothing() const {
  return detail::all_of(kept_, [](const auto& each) { return each->at != kept::phase::keeping; });
}
TENSORHUB_DECL void offloads::kept::hasten() {
  const std::lock_guard lock{holder_mutex};
  if (holder != nullptr) holder->interrupt();
}
TENSORHUB_DECL void offloads::kept::set_holder(worker* now) {
  const std::lock_guard lock{holder_mutex};
  holder = now;
}

TENSORHUB_DECL std::uint64_t offloads::bytes() const {
  const std::lock_guard lock{mutex_};
  return bytes_;
}

TENSORHUB_DECL void offloads::run(kept& self, const std::string& replica,
                                  const std::vector<tensor_spec>& tensors) {
  detail::name_thread("tensorhub-copy");
  std::uint64_t needed = 0;
  for (const tensor_spec& each : tensors) needed += each.bytes().value_or(0);
  bool fits = false;
  try {
    reserve(self, needed);
    fits = true;
    keep(self, replica, tensors);
  } catch (...) {
    refuse_(self.version, worker_detail::status_of_exception("the copy in host memory failed"));
  }
  {
    const std::lock_guard lock{mutex_};
    if (fits) bytes_ -= needed;
    self.promised = 0;
    self.at = kept::phase::offering;
    changed_.notify_all();
  }
  offer_memory(self);
}

TENSORHUB_DECL void offloads::offer_memory(kept& self) {
  std::unique_ptr<owned_tensors> unused;  // is given back without the lock
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, spare_time, [&] { return closed_ || !self.memory; });
  unused.swap(self.memory);
  lock.unlock();
  unused.reset();
  lock.lock();
  self.at = kept::phase::done;  // last: `take` joins this thread from now on, and must not wait
}

TENSORHUB_DECL std::unique_ptr<owned_tensors> offloads::take_spare() {
  const auto found = detail::find_if(
      kept_, [](const auto& each) { return each->at == kept::phase::offering && each->memory; });
  if (found == kept_.end()) return nullptr;
  changed_.notify_all();
  return std::move((*found)->memory);
}

TENSORHUB_DECL void offloads::end(kept& self) {
  const std::lock_guard lock{mutex_};
  if (!self.over) self.until = std::chrono::steady_clock::now() + options_.drain_timeout;
  self.over = true;
  changed_.notify_all();
}

TENSORHUB_DECL worker_options offloads::options_of(const std::string& replica) const {
  worker_options options = options_;
  options.replica = replica;
  options.trace = {};
  return options;
}

TENSORHUB_DECL void offloads::keep(kept& self, const std::string& replica,
                                   const std::vector<tensor_spec>& tensors) {
  const worker_role role{.added = true, .temporary = true, .dropped = [this, &self] { end(self); }};
  worker holder{options_of(replica), policies_, role};
  struct named {
    named(kept& of, worker& as) : self{of} { self.set_holder(&as); }
    ~named() { self.set_holder(nullptr); }
    kept& self;
  } const while_it_lives{self, holder};
  if (!self.memory) {
    auto made = holder.data().allocate(tensors, tensor_place::offload_space);
    const std::lock_guard lock{mutex_};
    self.memory = std::move(made);
    self.promised = 0;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    holder.add(tensors[i].name, self.memory->data(i), tensors[i].shape, tensors[i].type);
  const bool has_copied = copy_from_owner(self, holder);
  if (!has_copied) receive(self, holder);
  serve(self, holder, replica, has_copied && options_.shard.count > 1);
}

TENSORHUB_DECL void offloads::join(const kept& self, worker& holder) {
  static constexpr std::chrono::milliseconds look_interval{200};
  const auto until = std::chrono::steady_clock::now() + options_.drain_timeout;
  for (;;) {
    const auto now = std::chrono::steady_clock::now();
    try {
      return holder.state_->ensure_joined_beside(std::min(until, now + look_interval));
    } catch (const error& e) {
      if (e.code() != errc::disconnected || now >= until || is_over(self)) throw;
    }
  }
}

TENSORHUB_DECL bool offloads::copy_from_owner(const kept& self, worker& holder) {
  if (owner_->held_version() != self.version.number()) return false;
  try {
    join(self, holder);
    static_cast<void>(holder.state_->updates.update_from(*owner_, options_.drain_timeout));
    return holder.held_version() == self.version.number();
  } catch (const error&) {  // it was taken back meanwhile: others may hold it
    return false;
  }
}

TENSORHUB_DECL void offloads::receive(kept& self, worker& holder) {
  auto reading = holder.update_async(exactly(self.version.number()), stall_watch::longest);
  stall_watch watch{options_.drain_timeout, options_.drain_timeout};
  while (!reading.done()) {
    {  // the holder's own lock comes before this one (`dropped`)
      std::unique_lock lock{mutex_};
      if (changed_.wait_for(lock, stall_watch::look_interval, [&] { return self.over; })) break;
    }
    watch.look(reading.progress());  // if it throws, the handle's end is the update's
  }
  if (!reading.done()) {
    static_cast<void>(holder.leave(time_left(self)));
    throw error(errc::cancelled, "the process ends, or the version is not wanted any more");
  }
  static_cast<void>(reading.wait());
}

TENSORHUB_DECL void offloads::serve(kept& self, worker& holder, const std::string& replica,
                                    bool calls_beside) {
  static constexpr std::chrono::milliseconds look_interval{200};
  std::optional<update_handle> call;
  // A holder that the server has replaced or refused serves nobody: its memory is given back.
  std::unique_lock lock{mutex_, std::defer_lock};
  const auto is_returning = [&] {
    return holder.state_->client.with([](const session& core, time_point) { return core.is_returning(); });
  };
  while (holder.held_version() == self.version.number() || is_returning()) {
    if (calls_beside && (!call || call->done())) calls_beside = !call_beside(self, holder, call);
    lock.lock();
    changed_.wait_for(lock, look_interval, [&] { return self.over; });
    const bool over = self.over;
    lock.unlock();
    if (over) return static_cast<void>(holder.leave(time_left(self)));
  }
  throw error(errc::unavailable, "the temporary replica '" + replica + "' does not hold version " +
                                     to_string(self.version) + " any more: the server has given it up");
}

TENSORHUB_DECL bool offloads::call_beside(const kept& self, worker& holder,
                                          std::optional<update_handle>& call) {
  try {
    if (call) {
      static_cast<void>(call->wait());
      return true;
    }
    call.emplace(holder.update_async(exactly(self.version.number()), stall_watch::longest));
  } catch (const error&) {  // a shard was late, or the server: again at the next look
    call.reset();
  }
  return false;
}

TENSORHUB_DECL bool offloads::is_over(const kept& self) const {
  const std::lock_guard lock{mutex_};
  return self.over;
}

TENSORHUB_DECL std::chrono::milliseconds offloads::time_left(const kept& self) const {
  const std::lock_guard lock{mutex_};
  return detail::time_left(self.until);
}

TENSORHUB_DECL void offloads::reserve(kept& self, std::uint64_t needed) {
  const std::lock_guard lock{mutex_};
  if (needed > options_.offload_limit_bytes || bytes_ > options_.offload_limit_bytes - needed) {
    throw error(errc::limit_exceeded, "its " + std::to_string(needed) + " bytes, beside " +
                                          std::to_string(bytes_) + " of other versions, are beyond " +
                                          "offload_limit_bytes, " +
                                          std::to_string(options_.offload_limit_bytes));
  }
  if (!self.memory) {
    std::uint64_t available = detail::available_memory_bytes();
    for (const auto& each : kept_) available -= std::min(available, each->promised);
    if (needed > available)
      throw error(errc::limit_exceeded,
                  "its " + std::to_string(needed) + " bytes are more than the " + std::to_string(available) +
                      " that this machine, or the process's control group, has available");
    self.promised = needed;
  }
  bytes_ += needed;
}

TENSORHUB_DECL void offloads::forget_done() {
  std::erase_if(kept_, [](const auto& each) { return each->at == kept::phase::done; });
}

}  // namespace tensorhub::inline TENSORHUB_MODE
