#pragma once
/// \file device_access.hpp
/// Access to memory that the CPU cannot touch: copies, digests, exports.
///
/// The device of a range is known only when the range is described (a worker may mix host and device
/// tensors), so this is an interface behind a pointer of `memory_range`, not a concept. Its functions are
/// called per chunk or per batch, never per byte. memory/cuda.hpp has the implementation for CUDA;
/// testing/fake_device.hpp has one that needs no device.
///
/// Work is queued on *device lanes* (a CUDA stream each); no call waits for the whole device. A lane does its
/// work in order; lanes are independent of each other and of the user's streams. A device that makes no
/// progress for `device_lane::patience` is considered dead: its lane is treated as one that failed, and
/// whoever waits for the memory that the lane used gets it back.
///
/// A `device_access` outlives every transport and worker that has seen its memory, because they keep lanes of
/// the device.
///
/// Thread safety: any thread may use a `device_access`; one thread at a time may use a lane.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The number of a piece of work on its lane, counted from 1. Zero: the work could not be queued.
using lane_ticket = std::uint64_t;

enum class lane_state : std::uint8_t {
  pending = 0,
  /// This piece and all before it are done; their bytes are visible to the device and, where the CPU can
  /// reach them, to the CPU.
  done = 1,
  /// This piece or one before it failed; the lane does no further work (`trouble` gives the reason).
  failed = 2,
};

/// One xxh3-128 digest to make, of device memory.
struct digest_job {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t seed = 0;
};

/// One keyed BLAKE3 digest to make: the first 128 bits.
struct keyed_digest_job {
  const std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  digest_key key{};
};

/// A queue of work on one device.
class device_lane {
 public:
  device_lane() = default;
  device_lane(const device_lane&) = delete;
  device_lane& operator=(const device_lane&) = delete;
  /// Returns when no work of the lane runs any more, or after `patience` without progress.
  virtual ~device_lane() = default;

  /// The longest wait for a device without progress.
  static constexpr std::chrono::seconds patience{60};

  /// Each end may be device memory, pinned or plain host memory. The bytes at `from` must not change until
  /// the piece is done.
  [[nodiscard]] virtual lane_ticket copy(void* to, const void* from, std::uint64_t bytes) noexcept = 0;

  /// Many short copies in one call, for thousands of small tensors. The span may end with the call.
  [[nodiscard]] virtual lane_ticket copy_all(std::span<const copy_run> runs) noexcept = 0;

  /// Sets `out[i]` to the digest of `jobs[i]`, which equals the host's digest of the same bytes; it is set
  /// once the piece is done. `out` must stay valid until then; `jobs` may end with the call. A digest may be
  /// zero.
  [[nodiscard]] virtual lane_ticket digest(std::span<const digest_job> jobs, digest128* out) noexcept = 0;
  [[nodiscard]] virtual lane_ticket keyed_digest(std::span<const keyed_digest_job> jobs,
                                                 digest128* out) noexcept = 0;

  [[nodiscard]] virtual lane_state state(lane_ticket ticket) noexcept = 0;
  /// Waits until the ticket's piece is done or has failed; returns `pending` at the time-out.
  [[nodiscard]] virtual lane_state wait(lane_ticket ticket, duration timeout) noexcept = 0;

  /// The reason for the failure of the lane; empty if it has not failed.
  [[nodiscard]] virtual std::string trouble() const = 0;
};

/// What another process on this machine needs to map device memory (CUDA IPC). Wire format: plain bytes.
struct device_export {
  std::array<std::byte, 64> handle{};     ///< of the whole allocation; opaque
  std::array<std::byte, 16> device_id{};  ///< the UUID of the device
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;  ///< of the exported range in the allocation
  bool operator==(const device_export&) const = default;
};

/// Memory of another process, mapped into this one. The mapping ends with the object, which must outlive
/// every copy.
class device_import {
 public:
  device_import() = default;
  device_import(const device_import&) = delete;
  device_import& operator=(const device_import&) = delete;
  virtual ~device_import() = default;
  /// The first byte of the exported allocation, a device address.
  [[nodiscard]] virtual std::byte* data() const noexcept = 0;
};

/// One device.
class device_access {
 public:
  virtual ~device_access() = default;

  /// A description for people: "cuda:0 (NVIDIA H200)".
  [[nodiscard]] virtual std::string description() const = 0;

  /// The number of the device among this process's CUDA devices; -1: it is not a CUDA device.
  [[nodiscard]] virtual int ordinal() const { return -1; }

  /// Throws `system_failed`.
  [[nodiscard]] virtual std::unique_ptr<device_lane> open_lane() = 0;

  /// Host memory that the device copies from and to at full speed, aligned to a page. Throws `system_failed`.
  [[nodiscard]] virtual std::byte* allocate_pinned(std::uint64_t bytes) = 0;
  virtual void free_pinned(std::byte* memory, std::uint64_t bytes) noexcept = 0;

  /// Pins whole pages of shared memory that this process has mapped, so that the device copies from and to
  /// them at full speed; with `read_only` from them. False: they stay as they are, and copies work as before.
  [[nodiscard]] virtual bool pin(std::byte* /*pages*/, std::uint64_t /*bytes*/, bool /*read_only*/) noexcept {
    return false;
  }
  virtual void unpin(std::byte* /*pages*/) noexcept {}

  /// Empty if other processes cannot map this memory; `why_not` then has the reason. `range` lies on this
  /// device.
  [[nodiscard]] virtual std::optional<device_export> export_memory(const memory_range& range,
                                                                   std::string& why_not) = 0;
  /// Throws `system_failed` if the memory is gone, belongs to another machine, or has no path to this device.
  /// Null: not at present, since a mapping of memory that the other process had there before is in use here.
  /// Must not be called for exports of this process: their addresses are valid here already.
  [[nodiscard]] virtual std::unique_ptr<device_import> import_memory(const device_export& from) = 0;

  /// Runs `work`, which uses a library that calls the device's driver by itself: the driver acts on what is
  /// current in the calling thread, and in a thread of this library that is nothing. Throws what `work`
  /// throws; the first call also `system_failed`, if the device cannot be used.
  virtual void in_context(const std::function<void()>& work) { work(); }

  /// A dmabuf of the range for an RDMA device (the caller closes it), and the range's offset in it. Returns
  /// -1 if there is none; `why_not` then has the reason.
  [[nodiscard]] virtual int export_dmabuf(const memory_range& range, std::uint64_t& offset,
                                          std::string& why_not) = 0;

  /// Returns when what RDMA devices have written to this device's memory is visible to all devices of the
  /// machine. Work of this device that begins later sees it without that; another device, which reads the
  /// memory over NVLink or PCIe, need not. False: the device failed, and that is not known.
  [[nodiscard]] virtual bool flush_arrived() noexcept { return true; }

 protected:
  device_access() = default;
  device_access(const device_access&) = default;
  device_access& operator=(const device_access&) = default;
};

/// RAII over `allocate_pinned`. Movable; empty when default-constructed.
class pinned_memory {
 public:
  pinned_memory() = default;
  pinned_memory(device_access& device, std::uint64_t bytes)
      : device_{&device}, data_{device.allocate_pinned(bytes)}, bytes_{bytes} {}
  pinned_memory(pinned_memory&& other) noexcept { swap(other); }
  pinned_memory& operator=(pinned_memory&& other) noexcept {
    pinned_memory old{std::move(other)};
    swap(old);
    return *this;
  }
  ~pinned_memory() {
    if (data_ != nullptr) device_->free_pinned(data_, bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  void swap(pinned_memory& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  device_access* device_ = nullptr;
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// RAII over `device_access::pin`. It must end before the pages' mapping.
class pinned_pages {
 public:
  pinned_pages() = default;
  pinned_pages(const pinned_pages&) = delete;
  pinned_pages& operator=(const pinned_pages&) = delete;
  ~pinned_pages() {
    if (device_ != nullptr) device_->unpin(pages_);
  }

  /// The first call decides: later ones do nothing, also if that device could not pin the pages.
  void pin(device_access& device, std::byte* pages, std::uint64_t bytes, bool read_only) noexcept {
    if (pages_ != nullptr) return;
    pages_ = pages;
    if (device.pin(pages, bytes, read_only)) device_ = &device;
  }

 private:
  device_access* device_ = nullptr;
  std::byte* pages_ = nullptr;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
