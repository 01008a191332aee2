#pragma once
/// \file memory.hpp
/// Local memory as transports see it, and remote memory as messages describe it.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Which processor can follow a pointer.
enum class memory_kind : std::uint8_t { host = 0, cuda_device = 1, cuda_pinned = 2, cuda_managed = 3 };

class device_access;

/// A run of local memory and, if known, the file or the device behind it.
///
/// `backing_fd` is a memfd (or other file) mapped shared at `data`, `backing_offset` bytes into the file; it
/// is -1 if there is none. A transport may use the file to send without copying. The descriptor is borrowed:
/// the memory space keeps it open as long as the memory lives.
///
/// `device` copies and digests memory that the CPU cannot touch (types/device_access.hpp); it is borrowed
/// too. If `device` is set and `kind` is `cuda_device`, `data` is a device address, which the CPU must not
/// follow.
struct memory_range {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  memory_kind kind = memory_kind::host;
  int backing_fd = -1;
  std::uint64_t backing_offset = 0;
  device_access* device = nullptr;

  /// True if the CPU may follow `data`.
  [[nodiscard]] bool host_accessible() const noexcept { return kind != memory_kind::cuda_device; }
  /// True if its pages move between host and device, to where they are touched.
  [[nodiscard]] bool migrates() const noexcept { return kind == memory_kind::cuda_managed; }
};

/// One copy of `bytes` bytes. The two ends must not overlap, nor may the targets of two runs of one batch.
struct copy_run {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
};

/// The permitted use of a registered region.
enum class region_access : std::uint8_t {
  local_write = 0,  ///< target of this process's own reads
  remote_read = 1,  ///< peers may read it; it need not be writable
  both = 2,
};

/// Opaque bytes that let a peer read one registered region; the transport defines their meaning and size.
struct remote_key {
  std::array<std::byte, limits::remote_key_bytes> bytes{};
  std::uint8_t used_bytes = 0;
  [[nodiscard]] std::span<const std::byte> view() const noexcept { return {bytes.data(), used_bytes}; }
  bool operator==(const remote_key&) const = default;
};

/// A registered region of another process, as messages carry it. `base` is the transport's name for the first
/// byte (an address or an offset); readers add to it and do not interpret it.
struct remote_region {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  remote_key key{};
  bool operator==(const remote_region&) const = default;
};

/// A remote region whose key takes no more memory than it has bytes, for lists in messages.
struct told_region {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::string key{};  ///< at most `limits::remote_key_bytes`
  bool operator==(const told_region&) const = default;

  [[nodiscard]] static told_region of(const remote_region& region) {
    return {region.base, region.bytes,
            std::string{reinterpret_cast<const char*>(region.key.bytes.data()), region.key.used_bytes}};
  }
  [[nodiscard]] remote_region region() const {
    remote_region out{base, bytes, {}};
    out.key.used_bytes = static_cast<std::uint8_t>(std::min(key.size(), out.key.bytes.size()));
    std::memcpy(out.key.bytes.data(), key.data(), out.key.used_bytes);
    return out;
  }
};

/// What a worker lets other processes read: its control block and, of a shard of few segments
/// (`limits::told_segments`), the segments' memory, so that readers need not look it up in the block.
struct readable_memory {
  remote_region control{};
  std::vector<told_region> segments{};  ///< one per layout segment, or none

  readable_memory() = default;
  readable_memory(const remote_region& control_block)  // NOLINT: most have nothing else to say
      : control{control_block} {}
  /// Too many segments are left out.
  readable_memory(const remote_region& control_block, std::span<const remote_region> of_segments)
      : control{control_block} {
    if (of_segments.size() > limits::told_segments) return;
    for (const remote_region& each : of_segments) segments.push_back(told_region::of(each));
  }
};

/// `bytes` bytes at `offset` of a remote region: the source of one read. Borrowed: the region must outlive
/// the call.
struct remote_slice {
  const remote_region* region = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

namespace detail {

/// [offset, offset + bytes) lies within the first `room` bytes.
[[nodiscard]] constexpr bool lies_within(std::uint64_t room, std::uint64_t offset,
                                         std::uint64_t bytes) noexcept {
  return offset <= room && bytes <= room - offset;
}

/// The slice lies within its region, and the sum of `base` and `offset` is a number.
[[nodiscard]] constexpr bool is_sound(const remote_slice& slice) noexcept {
  return lies_within(slice.region->bytes, slice.offset, slice.bytes) &&
         slice.region->base <= UINT64_MAX - slice.offset;
}

/// Throws `invalid_argument` for the first range that no transport could register.
void check_registrable(std::string_view transport, std::span<const memory_range> ranges);
/// For a transport whose NIC keeps the pages that it was given: throws `transport_failed` for the first range
/// of which they move away.
void check_pages_stay(std::string_view transport, std::span<const memory_range> ranges);
/// For the same sentences: "range 0 of 2".
[[nodiscard]] std::string name_of_range(std::size_t index, std::size_t count);

}  // namespace detail

/// The address at which a transport reaches a process: text that only that transport interprets
/// ("tcp://10.0.0.1:4711").
struct transport_address {
  std::string text{};
  /// Opaque: one reader's permission to connect (capability.hpp); empty: no permission.
  std::string capability{};
  bool operator==(const transport_address&) const = default;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/memory.ipp"
#endif
