#pragma once
/// \file imports.hpp
/// Device memory of other processes, mapped by a device of this process: each allocation once per device for
/// all connections, for as long as regions in it are in use.
///
/// Thread safety: all members may be called from any thread.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// An allocation of one source.
struct foreign_allocation {
  std::string source{};      ///< its address: its incarnations may be several, and change
  std::uint64_t number = 0;  ///< the source's (region_answer::export_number)
  device_export words{};     ///< with offset 0
  bool operator==(const foreign_allocation&) const = default;
};

class import_table {
 public:
  /// Null: at present an older mapping of the same handle is in use. Throws `system_failed`, or an exception
  /// of the device.
  [[nodiscard]] std::shared_ptr<const device_import> get(const foreign_allocation& what, device_access& by);

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

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/imports.ipp"
#endif
