#pragma once
/// \file memory_space.hpp
/// Broken twins of `memory_space`.

#include <cstdint>

#include "tensorhub/concepts/memory_space.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class memory_flaw {
  none,
  no_tag,
  wrong_tag,
  no_default,
  no_allocation,
  allocation_is_copyable,
  allocation_is_immovable,
  no_allocate,
  allocate_gives_a_pointer,
  no_range,
  range_is_a_pointer,
  range_may_throw,
  range_is_not_const,
  no_describe,
  describe_gives_a_bool,
  no_copy,
  copy_gives_a_bool,
  copy_may_throw,
  no_host_accessible,
  host_accessible_is_a_number,
  count,
};

template <memory_flaw F>
struct twin_allocation
    : unless<F == memory_flaw::allocation_is_copyable || F == memory_flaw::allocation_is_immovable,
             movable_only, unless<F == memory_flaw::allocation_is_immovable, copyable, immovable>> {
  using result = unless<F == memory_flaw::range_is_a_pointer, memory_range, void*>;
  result range() const
      noexcept(F != memory_flaw::range_may_throw) requires(F != memory_flaw::no_range &&
                                                           F != memory_flaw::range_is_not_const);
  result range() noexcept requires(F == memory_flaw::range_is_not_const);
};

template <typename Allocation>
struct with_allocation {
  using allocation = Allocation;
};
template <typename Type>
struct with_host_accessible {
  static constexpr Type host_accessible{};
};

template <memory_flaw F>
struct memory_space_twin
    : unless<F == memory_flaw::no_tag,
             with_tag<unless<F == memory_flaw::wrong_tag, memory_space_tag, some_tag>>, nothing<>>,
      unless<F == memory_flaw::no_allocation, with_allocation<twin_allocation<F>>, nothing<1>>,
      unless<F == memory_flaw::no_host_accessible,
             with_host_accessible<unless<F == memory_flaw::host_accessible_is_a_number, bool, int>>,
             nothing<2>> {
  memory_space_twin() requires(F != memory_flaw::no_default);
  unless<F == memory_flaw::allocate_gives_a_pointer, twin_allocation<F>, void*> allocate(
      std::uint64_t bytes) requires(F != memory_flaw::no_allocate);
  unless<F == memory_flaw::describe_gives_a_bool, memory_range, bool> describe(
      void* data, std::uint64_t bytes) requires(F != memory_flaw::no_describe);
  unless<F == memory_flaw::copy_gives_a_bool, void, bool> copy(
      void* to, const void* from,
      std::uint64_t bytes) noexcept(F != memory_flaw::copy_may_throw) requires(F != memory_flaw::no_copy);
};

struct memory_space_refused {
  template <memory_flaw F>
  static consteval bool check() {
    static_assert(!memory_space<memory_space_twin<F>>, "a broken memory space was accepted");
    return true;
  }
};
static_assert(memory_space<memory_space_twin<memory_flaw::none>>);
static_assert(every_flaw_is_refused<memory_flaw, memory_space_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
