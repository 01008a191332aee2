#pragma once
/// \file shells.hpp
/// Archetypes of the concepts that use the machine but no network: clock and memory_space.

#include <sys/mman.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "tensorhub/concepts/clock.hpp"
#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// A clock that always shows the same time: monotonic, for every thread.
class clock_archetype {
 public:
  using concept_tag = clock_tag;
  explicit clock_archetype(time_point at) noexcept : at_{at} {}
  clock_archetype(const clock_archetype&) = delete;
  clock_archetype& operator=(const clock_archetype&) = delete;

  time_point now() const noexcept { return at_; }

 private:
  time_point at_;
};
static_assert(clock<clock_archetype>);

/// Host memory in anonymous pages, without a backing file.
class memory_space_archetype {
 public:
  using concept_tag = memory_space_tag;
  static constexpr bool host_accessible = true;

  class allocation {
   public:
    allocation(allocation&& other) noexcept : range_{std::exchange(other.range_, {})} {}
    allocation& operator=(allocation&& other) noexcept {
      std::swap(range_, other.range_);
      return *this;
    }
    ~allocation() {
      if (range_.data != nullptr) ::munmap(range_.data, range_.bytes);
    }
    memory_range range() const noexcept { return range_; }

   private:
    friend class memory_space_archetype;
    explicit allocation(memory_range range) noexcept : range_{range} {}
    memory_range range_{};
  };

  memory_space_archetype() noexcept {}
  memory_space_archetype(const memory_space_archetype&) = delete;
  memory_space_archetype& operator=(const memory_space_archetype&) = delete;

  allocation allocate(std::uint64_t bytes) {
    if (bytes == 0) return allocation{memory_range{}};
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw error{errc::system_failed, "mmap found no memory for an allocation"};
    return allocation{memory_range{static_cast<std::byte*>(data), bytes}};
  }
  memory_range describe(void* data, std::uint64_t bytes) {
    if (data == nullptr && bytes != 0)
      throw error{errc::invalid_argument, "a null pointer is no memory of this space"};
    return {static_cast<std::byte*>(data), bytes};
  }
  void copy(void* to, const void* from, std::uint64_t bytes) noexcept {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
};
static_assert(memory_space<memory_space_archetype>);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
