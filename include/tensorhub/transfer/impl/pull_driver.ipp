#pragma once
/// \file pull_driver.ipp
/// Definitions of pull_driver.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/in_parallel.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/pull_driver.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace pull_driver_detail {
[[nodiscard]] inline pull_options rules_of(const pull_driver_options& options, const pull_digests& digests) {
  pull_options rules = options.rules;
  rules.window_chunks = options.window_chunks;
  rules.needs_root = digests.enabled;
  return rules;
}
}  // namespace pull_driver_detail

TENSORHUB_DECL pull_driver::pull_driver(const layout& shape, const pull_digests& digests,
                                        chunk_index first_chunk, const pull_driver_options& options,
                                        callbacks handlers)
    : layout_{&shape},
      offsets_{control_offsets::of(shape)},
      digests_{digests},
      options_{options},
      handlers_{std::move(handlers)},
      core_{shape, pull_driver_detail::rules_of(options, digests), first_chunk},
      contacts_{core_, options.contacts} {
  options_.lanes = std::clamp<std::size_t>(options_.lanes, 1, std::max<std::size_t>(1, shape.chunk_count()));
  total_bytes_ = shape.bytes();
  look_bytes_ = core_.map_bytes();
}

TENSORHUB_DECL pull_driver::~pull_driver() = default;

TENSORHUB_DECL void pull_driver::add_source(pull_target target) {
  const std::lock_guard lock{mutex_};
  core_.add_source(target.facts);
  sources_.push_back({std::move(target)});
  wake_all();
}

TENSORHUB_DECL void pull_driver::release_source(lease_id released) {
  const std::lock_guard lock{mutex_};
  for (source_slot slot = 0; slot < sources_.size(); ++slot) {
    if (sources_[slot].target.facts.lease != released) continue;
    core_.retire_source(slot);
    sources_[slot].report_release = true;
  }
  wake_all();
}

TENSORHUB_DECL void pull_driver::commit(digest128 root) {
  const std::lock_guard lock{mutex_};
  core_.commit(root);
  settle();
  wake_all();
}

TENSORHUB_DECL void pull_driver::prefer(std::span<const chunk_index> chunks) {
  const std::lock_guard lock{mutex_};
  core_.prefer(chunks);
  wake_all();
}

TENSORHUB_DECL void pull_driver::stop() {
  const std::lock_guard lock{mutex_};
  stopped_ = true;
  wake_all();
}

TENSORHUB_DECL bool pull_driver::run() {
  detail::in_parallel(options_.lanes,
                      [this](std::size_t number) { guarded_lane(static_cast<lane_id>(number)); });
  if (handlers_.left) handlers_.left(core_.present());
  if (failure_) std::rethrow_exception(failure_);
  return core_.done();
}

TENSORHUB_DECL void pull_driver::guarded_lane(lane_id number) {
  try {
    run_lane(number);
  } catch (...) {
    const std::lock_guard lock{mutex_};
    if (!failure_) failure_ = std::current_exception();
    stopped_ = true;
    wake_all();
  }
}

TENSORHUB_DECL pull_progress pull_driver::progress() const {
  const std::lock_guard lock{mutex_};
  pull_progress out{core_.confirmed_bytes(),  total_bytes_,           core_.unchanged_bytes(),
                    core_.confirmed_chunks(), layout_->chunk_count(), {}};
  for (source_slot slot = 0; slot < sources_.size(); ++slot) {
    out.sources.push_back({sources_[slot].target.name, sources_[slot].path, core_.chunks_from(slot),
                           core_.bytes_from(slot), core_.is_lost(slot), sources_[slot].target.facts.far});
  }
  return out;
}

TENSORHUB_DECL duration pull_driver::in_time(duration patience) const noexcept {
  return std::max<duration>(std::min(patience, began_ + options_.time_left - now()),
                            std::chrono::milliseconds{1});
}

TENSORHUB_DECL void pull_driver::wake_all(const lane_thread* but) noexcept {
  for (lane_thread* lane : lanes_)
    if (lane != but) lane->wake();
}

TENSORHUB_DECL void pull_driver::show_confirmed(source_slot slot) {
  show_confirmed();
  if (core_.is_lost(slot)) wake_all();
}

TENSORHUB_DECL void pull_driver::show_confirmed() {
  const auto fresh = core_.take_confirmed();
  if (!fresh.empty() && handlers_.confirmed) handlers_.confirmed(fresh, core_.table());
  settle();
  if (core_.done()) wake_all();
}

TENSORHUB_DECL void pull_driver::settle() {
  const auto root = core_.unsettled();
  if (!root) return;
  if (digests_.root(digests_.seeds.root, core_.table()) == *root) {
    core_.settle();
    if (handlers_.settled) handlers_.settled(core_.table());
  } else if (!core_.doubt_digests() && !failure_) {
    failure_ = std::make_exception_ptr(
        error(errc::corrupt,
              "the chunks that were read while the version was open are not those that were "
              "published: update again"));
    stopped_ = true;
  }
  wake_all();
}

TENSORHUB_DECL void pull_driver::note_path(source_slot slot, std::string path) {
  std::string& known = sources_[slot].path;
  if (path.size() > known.size()) known = std::move(path);
}

TENSORHUB_DECL bool pull_driver::has_released() const {
  for (source_slot slot = 0; slot < sources_.size(); ++slot) {
    if (sources_[slot].report_release && core_.is_idle(slot)) return true;
  }
  return false;
}

TENSORHUB_DECL std::string pull_driver::describe_stall() {
  core_.forgive_stall(now());
  std::string names;
  for (source_slot slot = 0; slot < sources_.size(); ++slot) {
    if (core_.is_wanted(slot)) names += " " + sources_[slot].target.name;
  }
  std::string text = "no new chunk";
  if (!names.empty())
    text += " from" + names;
  else if (!sources_.empty())
    text += ", and no source is left: the last one was " + sources_.back().target.name;
  return text + ": " + std::to_string(core_.confirmed_chunks()) + " of " +
         std::to_string(layout_->chunk_count()) + " are here";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
