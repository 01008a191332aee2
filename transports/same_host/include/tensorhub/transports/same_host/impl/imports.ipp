#pragma once
/// \file imports.ipp
/// Definitions of imports.hpp.

#include <sys/stat.h>

#include <algorithm>

#include "tensorhub/transports/same_host/imports.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL remote_file::remote_file(detail::unique_fd descriptor, bool maps) noexcept
    : bytes_{detail::file_bytes(descriptor.get())} {
  if (maps && bytes_ > 0 && detail::is_sealed_against_shrinking(descriptor.get()))
    view_ = detail::file_mapping_view{descriptor.get(), bytes_, PROT_READ};
  if (!view_) descriptor_ = std::move(descriptor);
}

TENSORHUB_DECL void remote_file::expect_copy(device_access& by, std::uint64_t offset,
                                             std::uint64_t bytes) const {
  const std::uint64_t number = offset / slice_bytes;
  const std::uint64_t first = number * slice_bytes;
  const std::uint64_t length = std::min(slice_bytes, bytes_ - first);
  const std::lock_guard lock{mutex_};
  slice_record& slice = slices_[number];
  slice.copied_bytes += bytes;
  if (slice.copied_bytes > length / 8) slice.pages.pin(by, view_.data() + first, length, true);
}

TENSORHUB_DECL std::shared_ptr<const remote_file> import_table::adopt(detail::unique_fd descriptor,
                                                                      bool maps) {
  struct stat about {};
  if (::fstat(descriptor.get(), &about) != 0) about = {};
  const std::pair<std::uint64_t, std::uint64_t> id{about.st_dev, about.st_ino};
  const std::lock_guard lock{mutex_};
  std::erase_if(files_, [](const auto& each) { return each.file.expired(); });
  for (const file_entry& each : files_) {
    auto file = each.file.lock();
    const bool is_it = file && each.id == id && file->data() != nullptr;
    if (is_it && file->bytes() == detail::file_bytes(descriptor.get())) return file;
  }
  auto fresh = std::make_shared<const remote_file>(std::move(descriptor), maps);
  if (fresh->data() != nullptr) files_.push_back({id, fresh});
  return fresh;
}

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
  if (fresh) entries_.push_back({what, &by, fresh});
  return fresh;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
