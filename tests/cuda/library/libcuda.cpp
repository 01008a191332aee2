/// \file libcuda.cpp
/// The fake driver as the library that programs load, libcuda.so.1. A process that has loaded it already,
/// such as a test in Python, gets it where a program asks for the driver. What tests need besides begins with
/// `fake_`.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../fake_cuda_driver.hpp"

// A symbol that stands for a function of the fake: <cuda.h> has declared the driver's own names already.
#define EXPORTED(symbol, function)                                                               \
  extern "C" {                                                                                   \
  using type_of_##symbol = decltype(fake_cuda::entry_points::function);                          \
  static type_of_##symbol* resolve_##symbol() {                                                  \
    return fake_cuda::entry_points::function;                                                    \
  }                                                                                              \
  [[gnu::ifunc("resolve_" #symbol)]] extern type_of_##symbol exported_##symbol __asm__(#symbol); \
  }
FAKE_CUDA_FUNCTIONS(EXPORTED)
#undef EXPORTED

extern "C" {

/// Device memory; zero: there is none left.
std::uint64_t fake_allocate(int device, std::size_t bytes) {
  return tensorhub::detail::cuda_address(
      fake_cuda::driver::instance().allocate(fake_cuda::origin::device, device, bytes));
}
int fake_free(std::uint64_t memory) {
  return fake_cuda::driver::instance().free(reinterpret_cast<const void*>(memory)) ? 0 : 1;
}
void fake_write(std::uint64_t memory, const void* from, std::size_t bytes) {
  std::memcpy(fake_cuda::driver::instance().reach(memory, bytes), from, bytes);
}
void fake_read(void* to, std::uint64_t memory, std::size_t bytes) {
  std::memcpy(to, fake_cuda::driver::instance().reach(memory, bytes), bytes);
}
/// Host memory that the driver knows.
int fake_is_pinned(std::uint64_t memory) {
  return fake_cuda::driver::instance().knows(memory) ? 1 : 0;
}
/// A stream of the user, which does what it is given only while it is not held.
void* fake_stream(int device) {
  CUcontext context = nullptr;
  fake_cuda::entry_points::primary_context_retain(&context, device);
  fake_cuda::entry_points::context_push(context);
  CUstream stream = nullptr;
  fake_cuda::entry_points::stream_create(&stream, CU_STREAM_NON_BLOCKING, 0);
  fake_cuda::entry_points::context_pop(&context);
  return stream;
}
/// The number of a default stream: 0 is the legacy one of the device, 2 the calling thread's own.
std::uint64_t fake_default_stream(int device, int which) {
  CUcontext context = nullptr;
  fake_cuda::entry_points::primary_context_retain(&context, device);
  fake_cuda::entry_points::context_push(context);
  const fake_cuda::stream_thread* const stream =
      fake_cuda::entry_points::stream_of(which == 0 ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD);
  fake_cuda::entry_points::context_pop(&context);
  return stream->number();
}
/// The number of the stream that was made last.
std::uint64_t fake_last_stream() {
  return fake_cuda::driver::instance().counted.streams;
}
/// Zero: none is held.
void fake_hold(std::uint64_t number) {
  fake_cuda::driver::instance().set.held_stream = number;
}
std::uint64_t fake_faults() {
  return fake_cuda::driver::instance().counted.context_faults;
}
}
