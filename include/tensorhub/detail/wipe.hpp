#pragma once
/// \file wipe.hpp
/// Takes secrets out of memory that ends: what stays there can turn up in a core dump, or in other memory of
/// the process.

#include <cstddef>
#include <string>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Writes zeros; unlike a memset before the end of an object, no compiler leaves it out.
void wipe(void* memory, std::size_t bytes) noexcept;
inline void wipe(std::string& text) noexcept {
  wipe(text.data(), text.size());
}

/// Wipes a text at the end of its scope.
class wiped_at_end {
 public:
  explicit wiped_at_end(std::string& text) noexcept : text_{text} {}
  ~wiped_at_end() { wipe(text_); }
  wiped_at_end(const wiped_at_end&) = delete;
  wiped_at_end& operator=(const wiped_at_end&) = delete;

 private:
  std::string& text_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/detail/impl/wipe.ipp"
#endif
