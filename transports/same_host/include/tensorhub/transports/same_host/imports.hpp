#pragma once
/// \file imports.hpp
/// Other processes' device memory, mapped by a device of this one: each allocation once per device, for all
/// connections, for as long as somebody reads regions in it.
///
/// Thread safety: all members may be called from any thread.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// An allocation of one source.
struct foreign_allocation {
  incarnation source{};
  std::uint64_t number = 0;  ///< the source's (region_answer::export_number)
  device_export words{};     ///< with offset 0
  bool operator==(const foreign_allocation&) const = default;
};

class import_table {
 public:
  /// Throws `system_failed`, or what else the device throws.
  [[nodiscard]] std::shared_ptr<const device_import> get(const foreign_allocation& what, device_access& by) {
    const std::lock_guard lock{mutex_};
    std::erase_if(entries_, [](const auto& each) { return each.mapped.expired(); });
    for (const entry& each : entries_) {
      auto mapped = each.mapped.lock();
      if (!mapped || each.by != &by) continue;
      if (each.what == what) return mapped;
      // A device may answer a handle that it has open with the mapping that it has: of memory that was freed.
      if (each.what.words == what.words)
        throw error(errc::system_failed, "an older mapping of the same handle is still in use");
    }
    std::shared_ptr<const device_import> fresh = by.import_memory(what.words);
    entries_.push_back({what, &by, fresh});
    return fresh;
  }

 private:
  struct entry {
    foreign_allocation what{};
    device_access* by = nullptr;
    std::weak_ptr<const device_import> mapped{};
  };
  std::mutex mutex_;
  std::vector<entry> entries_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
