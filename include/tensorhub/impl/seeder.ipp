#pragma once
/// \file seeder.ipp
/// What seeder.hpp declares.

#include <chrono>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "tensorhub/detail/exception_text.hpp"
#include "tensorhub/detail/started_thread.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/seeder.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/worker/stall_watch.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL any_seeder::any_seeder(worker_options options, worker_policies policies)
    : options_{validated(std::move(options))},
      worker_{options_, std::move(policies), worker_role{.awaited = true}},
      client_{{options_.server, options_.security, options_.process, options_.request_retry,
               options_.server_timeout}} {
  thread_ = detail::started_thread("the seed", [this](const std::stop_token& stop) { run(stop); });
}

TENSORHUB_DECL any_seeder::~any_seeder() {
  thread_.request_stop();
}

TENSORHUB_DECL version_number any_seeder::held_version() const {
  const std::lock_guard lock{mutex_};
  return held_;
}

TENSORHUB_DECL version_number any_seeder::wait(version_number version, std::chrono::milliseconds timeout) {
  std::unique_lock lock{mutex_};
  const std::uint64_t before = interrupts_;
  const auto has_ended = [&] { return held_ >= version || interrupts_ != before; };
  if (!changed_.wait_for(lock, detail::bounded(timeout), has_ended) || held_ < version) {
    throw error(interrupts_ != before ? errc::cancelled : errc::timed_out,
                "the seed '" + options_.replica + "' holds version " + to_string(held_) + ", not yet " +
                    to_string(version) +
                    (last_failure_.empty() ? std::string{} : "; its last failure: " + last_failure_),
                context_of(options_, version));
  }
  return held_;
}

TENSORHUB_DECL void any_seeder::interrupt() {
  client_.interrupt();
  const std::lock_guard lock{mutex_};
  ++interrupts_;
  changed_.notify_all();
}

TENSORHUB_DECL std::string any_seeder::last_failure() const {
  const std::lock_guard lock{mutex_};
  return last_failure_;
}

TENSORHUB_DECL worker_statistics any_seeder::statistics() const {
  return worker_.statistics();
}

TENSORHUB_DECL registration_cost any_seeder::cost() const noexcept {
  return worker_.cost();
}
TENSORHUB_DECL incarnation any_seeder::self() const noexcept {
  return worker_.self();
}
TENSORHUB_DECL std::uint64_t any_seeder::offloaded_bytes() const {
  return worker_.offloaded_bytes();
}

TENSORHUB_DECL std::vector<model_entry> any_seeder::list(std::string model,
                                                         std::chrono::milliseconds timeout) {
  return client_.list(std::move(model), timeout);
}
TENSORHUB_DECL model_description any_seeder::describe_model(std::uint32_t shard,
                                                            std::chrono::milliseconds timeout) {
  return client_.describe_model(options_.model, shard, timeout);
}
TENSORHUB_DECL std::string any_seeder::why(std::chrono::milliseconds timeout) {
  return client_.why(options_.model, options_.replica, options_.shard.index, timeout);
}
TENSORHUB_DECL stuck_report any_seeder::stuck(std::chrono::milliseconds older_than,
                                              std::chrono::milliseconds timeout) {
  return client_.stuck(options_.model, older_than, timeout);
}
TENSORHUB_DECL void any_seeder::retain(std::uint32_t versions, std::chrono::milliseconds timeout) {
  client_.retain(options_.model, versions, timeout);
}
TENSORHUB_DECL void any_seeder::pin(version_number version, std::chrono::milliseconds timeout) {
  client_.pin(options_.model, version, timeout);
}
TENSORHUB_DECL void any_seeder::release(version_number version, std::chrono::milliseconds timeout) {
  client_.release(options_.model, version, timeout);
}

TENSORHUB_DECL void any_seeder::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    try {
      round(stop);
    } catch (...) {  // no memory even for the words
      std::this_thread::sleep_for(pause);
    }
  }
}

TENSORHUB_DECL void any_seeder::round(const std::stop_token& stop) {
  try {
    if (!has_layout_) take_layout();
    step(stop);
    is_failing_ = false;
  } catch (const error& e) {
    note(e, stop);
  } catch (...) {
    note(error{errc::system_failed, detail::exception_text(), context_of(options_)}, stop);
  }
}

TENSORHUB_DECL void any_seeder::take_layout() {
  const auto known = worker_.describe_model(options_.shard.index, waiting);
  if (!memory_) memory_ = worker_.data().allocate(known.tensors, tensor_place::memory_space);
  for (std::size_t i = worker_.data().tensors().size(); i < known.tensors.size(); ++i)
    worker_.add(known.tensors[i].name, memory_->data(i), known.tensors[i].shape, known.tensors[i].type);
  has_layout_ = true;
}

TENSORHUB_DECL void any_seeder::step(const std::stop_token& stop) {
  const version_number held = worker_.held_version();  // none, after it was rolled back
  {
    const std::lock_guard lock{mutex_};
    if (std::exchange(held_, held) != held) changed_.notify_all();  // an update that failed may have left it
  }
  const version_selector newer = at_least(version_number{held.value + 1});
  try {
    worker_.wait(newer, waiting);
  } catch (const error& e) {
    if (e.code() != errc::timed_out) throw;
    return;
  }
  auto begun = worker_.update_async(newer, stall_watch::longest);
  watch(begun, stop);
  if (stop.stop_requested()) return;  // the handle cancels what runs, and waits for its end
  const version_number version = begun.wait().version;
  const std::lock_guard lock{mutex_};
  held_ = version;
  changed_.notify_all();
}

TENSORHUB_DECL void any_seeder::watch(const update_handle& begun, const std::stop_token& stop) {
  stall_watch each{options_.drain_timeout, defaults::update_timeout};
  while (!begun.done() && !stop.stop_requested()) {
    try {
      each.look(begun.progress());
    } catch (const error& e) {
      throw error(e.code(), e.sentence(), context_of(options_));
    }
    std::this_thread::sleep_for(stall_watch::look_interval);
  }
}

TENSORHUB_DECL void any_seeder::note(const error& failed, const std::stop_token& stop) {
  const std::string words = failed.what();
  std::unique_lock lock{mutex_};
  const bool is_news = !std::exchange(is_failing_, true) || last_failure_ != words;
  last_failure_ = words;
  lock.unlock();
  if (options_.log && is_news) {
    log_line line = line_of(log_level::warning, failed);
    line.text = "seed: " + line.text;
    options_.log(line);
  }
  lock.lock();
  changed_.wait_for(lock, stop, failed.code() == errc::replaced ? long_pause : pause, [] { return false; });
}

}  // namespace tensorhub::inline TENSORHUB_MODE
