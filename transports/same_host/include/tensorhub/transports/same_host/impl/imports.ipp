#pragma once
/// \file imports.ipp
/// Definitions of imports.hpp.

#include <algorithm>

#include "tensorhub/transports/same_host/imports.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL std::shared_ptr<const device_import> import_table::get(const foreign_allocation& what,
                                                                      device_access& by) {
  const std::lock_guard lock{mutex_};
  std::erase_if(entries_, [](const auto& each) { return each.mapped.expired(); });
  for (const entry& each : entries_) {
    auto mapped = each.mapped.lock();
    if (!mapped || each.by != &by) continue;
    if (each.what == what) return mapped;
    // For a handle that is already open, a device may return the existing mapping, which may be of freed
    // memory.
    if (each.what.words == what.words) return nullptr;
  }
  std::shared_ptr<const device_import> fresh = by.import_memory(what.words);
  entries_.push_back({what, &by, fresh});
  return fresh;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
