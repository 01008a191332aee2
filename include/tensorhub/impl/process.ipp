#pragma once
/// \file process.ipp
/// Definitions of process.hpp.

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <vector>

#include "tensorhub/detail/process_wide.hpp"
#include "tensorhub/process.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct process::parts {
  struct part {
    std::type_index kind;
    std::weak_ptr<void> object;
  };
  const ::pid_t owner = ::getpid();
  std::mutex mutex;
  std::vector<part> all;  ///< guarded by mutex
};

namespace process_detail {

/// The parts of this operating-system process.
template <typename Parts>
struct present_parts {
  std::mutex mutex;
  std::shared_ptr<Parts> parts;  ///< guarded by mutex; null: not asked for yet
  void in_child() noexcept {
    parts.reset();  // what they point to lives on with the parent's workers
  }
};

}  // namespace process_detail

TENSORHUB_DECL process process::separate() {
  return process{std::make_shared<parts>()};
}

TENSORHUB_DECL std::shared_ptr<void> process::find_or_make(
    std::type_index kind, const std::function<bool(void*)>& fits,
    const std::function<std::shared_ptr<void>()>& make) const {
  std::shared_ptr<parts> shared = parts_;
  if (!shared || shared->owner != ::getpid()) {
    auto& present = detail::process_wide<process_detail::present_parts<parts>>();
    const std::lock_guard lock{present.mutex};
    if (!present.parts) present.parts = std::make_shared<parts>();
    shared = present.parts;
  }
  const std::lock_guard lock{shared->mutex};
  std::erase_if(shared->all, [](const parts::part& each) { return each.object.expired(); });
  for (const parts::part& each : shared->all) {
    if (each.kind != kind) continue;
    if (auto object = each.object.lock(); object && fits(object.get())) return object;
  }
  std::shared_ptr<void> made = make();
  shared->all.push_back({kind, made});
  return made;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
