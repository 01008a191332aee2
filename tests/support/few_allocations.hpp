#pragma once
/// \file few_allocations.hpp
/// A thread that gets memory only some more times: `allocations_left`, of which each allocation takes one. It
/// replaces operator new, so one file of a binary includes it. The sanitizers replace it themselves: there
/// TENSORHUB_MEMORY_CAN_FAIL is 0, and there is nothing else in here.

#include "support/sanitizers.hpp"
#define TENSORHUB_MEMORY_CAN_FAIL !(TENSORHUB_UNDER_ADDRESS_SANITIZER || TENSORHUB_UNDER_THREAD_SANITIZER)

#if TENSORHUB_MEMORY_CAN_FAIL

#include <cstddef>
#include <cstdlib>
#include <new>

static thread_local int allocations_left = -1;  ///< -1: as many as the system gives

void* operator new(std::size_t bytes) {
  if (allocations_left == 0) throw std::bad_alloc{};
  if (allocations_left > 0) --allocations_left;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc{};
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

/// The calling thread, while this lives.
struct with_few_allocations {
  explicit with_few_allocations(int count) { allocations_left = count; }
  ~with_few_allocations() { allocations_left = -1; }
};

#endif
