#pragma once
/// \file copy.ipp
/// Definitions of copy.hpp.

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tensorhub/transports/same_host/copy.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL void copy_streaming(std::byte* target, const std::byte* from, std::uint64_t bytes) noexcept {
#if defined(__SSE2__)
  constexpr std::uint64_t line_bytes = 64;
  constexpr std::uint64_t ahead_bytes = 512;
  const std::uint64_t misaligned = reinterpret_cast<std::uintptr_t>(target) % line_bytes;
  const std::uint64_t head = std::min(misaligned == 0 ? 0 : line_bytes - misaligned, bytes);
  std::memcpy(target, from, head);
  std::uint64_t done = head;
  for (; done + line_bytes <= bytes; done += line_bytes) {
    // A prefetch beyond the end has no effect.
    _mm_prefetch(reinterpret_cast<const char*>(from + done + ahead_bytes), _MM_HINT_NTA);
    const auto* const in = reinterpret_cast<const __m128i*>(from + done);
    auto* const out = reinterpret_cast<__m128i*>(target + done);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(target + done, from + done, bytes - done);
  _mm_sfence();  // makes the streaming stores visible before later stores
#else
  std::memcpy(target, from, bytes);
#endif
}

TENSORHUB_DECL int copy_from_file(int descriptor, std::uint64_t offset, std::byte* target,
                                  std::uint64_t bytes) noexcept {
  while (bytes > 0) {
    const auto taken = ::pread(descriptor, target, bytes, static_cast<off_t>(offset));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) return errno;
    if (taken == 0) return EFAULT;
    const auto got = static_cast<std::uint64_t>(taken);
    target += got;
    offset += got;
    bytes -= got;
  }
  return 0;
}

TENSORHUB_DECL int copy_from_process(pid_t process, std::uint64_t address, std::byte* target,
                                     std::uint64_t bytes) noexcept {
  while (bytes > 0) {
    const iovec into{target, bytes};
    const iovec from{reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), bytes};
    const auto taken = ::process_vm_readv(process, &into, 1, &from, 1, 0);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) return errno;
    if (taken == 0) return EFAULT;
    const auto got = static_cast<std::uint64_t>(taken);
    target += got;
    address += got;
    bytes -= got;
  }
  return 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
