#pragma once
/// \file file_view.ipp
/// Definitions of file_view.hpp.

#include <fcntl.h>
#include <sys/stat.h>

#include "tensorhub/detail/file_view.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL file_mapping_view::file_mapping_view(int descriptor, std::uint64_t bytes,
                                                    int protection) noexcept {
  void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return;
  static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));  // where the file has them
  data_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

TENSORHUB_DECL file_mapping_view& file_mapping_view::operator=(file_mapping_view&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

TENSORHUB_DECL bool is_sealed_against_shrinking(int descriptor) noexcept {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

TENSORHUB_DECL std::uint64_t file_bytes(int descriptor) noexcept {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 && facts.st_size > 0 ? static_cast<std::uint64_t>(facts.st_size)
                                                               : 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
