#pragma once
/// \file imports.hpp
/// Memory of other processes, mapped once for all connections, for as long as regions in it are in use: files
/// by this process, device memory by each of its devices.
///
/// Thread safety: all members may be called from any thread.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/file_view.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// A source's file: mapped, or open.
class remote_file {
 public:
  /// `maps`: a file that cannot become shorter is mapped; an access beyond the end would be a bus error.
  remote_file(detail::unique_fd descriptor, bool maps) noexcept;

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }  ///< on arrival
  /// Null: it is not mapped.
  [[nodiscard]] const std::byte* data() const noexcept { return view_.data(); }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.get(); }

  /// A device pins the file slice by slice, as it reads: the pages of a slice when an eighth of them has been
  /// copied. On an H200 (PCIe 5) a GiB is pinned in 50 ms, and then copied in 20 ms instead of 120 to 170.
  /// Memory that is pinned lies in one slice: no copy may reach beyond its slice.
  static constexpr std::uint64_t slice_bytes = 32u << 20;
  /// The device will copy so many bytes, from `offset` on; they lie in one slice.
  void expect_copy(device_access& by, std::uint64_t offset, std::uint64_t bytes) const;

 private:
  struct slice_record {
    std::uint64_t copied_bytes = 0;
    pinned_pages pages{};
  };
  detail::unique_fd descriptor_;
  detail::file_mapping_view view_;
  std::uint64_t bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::uint64_t, slice_record>
      slices_;  ///< after the mapping: unpinned before it ends
};

/// An allocation of one source.
struct foreign_allocation {
  std::string source{};      ///< its address: its incarnations may be several, and change
  std::uint64_t number = 0;  ///< the source's (region_answer::export_number)
  device_export words{};     ///< with offset 0
  bool operator==(const foreign_allocation&) const = default;
};

class import_table {
 public:
  /// Null: at present an older mapping of the same handle or address is in use. Throws `system_failed`, or an
  /// exception of the device.
  [[nodiscard]] std::shared_ptr<const device_import> get(const foreign_allocation& what, device_access& by);

  /// The same object for the same file, while it is mapped. May throw bad_alloc.
  [[nodiscard]] std::shared_ptr<const remote_file> adopt(detail::unique_fd descriptor, bool maps);

 private:
  struct entry {
    foreign_allocation what{};
    device_access* by = nullptr;
    std::weak_ptr<const device_import> mapped{};
  };
  struct file_entry {
    std::pair<std::uint64_t, std::uint64_t> id{};  ///< device and inode
    std::weak_ptr<const remote_file> file{};
  };
  std::mutex mutex_;
  std::vector<entry> entries_;
  std::vector<file_entry> files_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/imports.ipp"
#endif
