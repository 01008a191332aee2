#pragma once
/// \file memory_space.hpp
/// Concept `memory_space`: a kind of memory that weights can live in.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tensorhub/types/memory.hpp"

namespace tensorhub {

/// Opt-in: `using concept_tag = memory_space_tag;`
struct memory_space_tag {};

// | expression              | type             | means                                                      |
// |-------------------------|------------------|------------------------------------------------------------|
// | M::concept_tag          | memory_space_tag | the author has read this table                             |
// | M{}                     | M                | default-constructible: every worker has its own            |
// | M::allocation           | movable RAII     | memory of this space; not copyable                         |
// | m.allocate(bytes)       | M::allocation    | zero-filled, aligned to a page; throws `system_failed`     |
// | a.range()               | memory_range     | the allocation's memory with its backing file, if there is |
// |                         |                  | one; noexcept                                              |
// | m.describe(ptr, bytes)  | memory_range     | what is known of any memory of the user: kind, backing     |
// |                         |                  | file. Throws `invalid_argument` if this space cannot hold  |
// |                         |                  | that pointer                                               |
// | m.copy(to, from, bytes) | void             | copies within the space or from/to host; complete on       |
// |                         |                  | return; noexcept; ranges must not overlap                  |
// | M::host_accessible      | constexpr bool   | the CPU may follow pointers of this space                  |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename M>
concept memory_space =
    std::same_as<typename M::concept_tag, memory_space_tag> && std::default_initializable<M> &&
    std::movable<typename M::allocation> && !std::copy_constructible<typename M::allocation> &&
    std::same_as<std::remove_cv_t<decltype(M::host_accessible)>, bool> &&
    requires(M& m, const typename M::allocation& a, void* to, const void* from, std::uint64_t bytes) {
      { m.allocate(bytes) } -> std::same_as<typename M::allocation>;
      { a.range() } noexcept -> std::same_as<memory_range>;
      { m.describe(to, bytes) } -> std::same_as<memory_range>;
      { m.copy(to, from, bytes) } noexcept -> std::same_as<void>;
    };
// clang-format on

}  // namespace tensorhub
