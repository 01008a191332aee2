#pragma once
/// \file file_view.hpp
/// A file of another process, mapped.
///
/// Thread safety: as a pointer; free functions without shared state.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// A whole file, mapped shared.
class file_mapping_view {
 public:
  file_mapping_view() = default;
  /// Empty if the kernel refuses; errno says why.
  file_mapping_view(int descriptor, std::uint64_t bytes, int protection) noexcept;
  file_mapping_view(file_mapping_view&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  file_mapping_view& operator=(file_mapping_view&& other) noexcept;
  ~file_mapping_view() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// True: the file cannot become shorter, so that a mapping of it cannot fault.
[[nodiscard]] bool is_sealed_against_shrinking(int descriptor) noexcept;

[[nodiscard]] std::uint64_t file_bytes(int descriptor) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/file_view.ipp"
#endif
