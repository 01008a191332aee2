/// \file control_message.cpp
/// The decoder of control messages: any bytes end in a message or a fault, what was decoded is encoded to the
/// very same bytes, and no message costs more memory than its length pays for.
///
/// Input: a type number (255: a whole frame follows, header and all), then the payload.

#include "support/sanitizers.hpp"
#if TENSORHUB_UNDER_ADDRESS_SANITIZER
#include <sanitizer/allocator_interface.h>
#endif

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "input.hpp"
#include "tensorhub/service/codec.hpp"

namespace {

std::atomic<std::size_t> allocated_bytes = 0;

/// The smallest tensor has 17 bytes on the wire and some 64 in memory, the smallest reply entry is alike.
constexpr std::size_t bytes_for_each = 64;
constexpr std::size_t bytes_for_all = 16 * 1024;

std::vector<std::byte> frame_of(fuzz::input& in) {
  using namespace tensorhub::codec_detail;
  const std::uint8_t type = in.byte();
  const std::string_view payload = in.rest();
  std::vector<std::byte> frame;
  if (type != 255) {
    frame_header header;
    header.type = type;
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.sender = 1;
    header.sequence = 2;
    frame.resize(sizeof header);
    std::memcpy(frame.data(), &header, sizeof header);
  }
  const auto* const bytes = reinterpret_cast<const std::byte*>(payload.data());
  frame.insert(frame.end(), bytes, bytes + payload.size());
  return frame;
}

}  // namespace

// Every allocation of the program is counted.
#if TENSORHUB_UNDER_ADDRESS_SANITIZER
namespace {
void count_allocation(const volatile void*, std::size_t bytes) {
  allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
}
const int hooks = __sanitizer_install_malloc_and_free_hooks(count_allocation, [](const volatile void*) {});
}  // namespace
#else
void* operator new(std::size_t bytes) {
  allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc{};
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  const std::vector<std::byte> frame = frame_of(in);
  static tensorhub::decoder decoder;
  static tensorhub::encoder encoder;
  const std::size_t before = allocated_bytes.load();
  const tensorhub::decode_result decoded = decoder.decode(frame);
  fuzz::require(before != 0, "allocations are counted");
  fuzz::require(allocated_bytes.load() - before <= bytes_for_all + bytes_for_each * frame.size(),
                "a message allocates no more than its length pays for");
  if (!decoded.ok()) return 0;
  const auto again = encoder.encode(decoded.message);
  fuzz::require(again.size() == frame.size() && std::memcmp(again.data(), frame.data(), frame.size()) == 0,
                "a message has one encoding");
  return 0;
}
