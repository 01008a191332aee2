#pragma once
/// \file host.hpp
/// Memory space `host`: ordinary memory of the process, best in a memfd.
///
/// Weights may lie anywhere the CPU can reach. Where they lie in a file that is mapped shared (a memfd, a
/// file in the page cache), a transport can send them without copying: TCP gives the pages to `sendfile`, and
/// same-host readers map them. Such memory comes from `allocate`, or is made known by `file_mapping`; what is
/// not known is served all the same, by copying.
///
/// Thread safety: everything may be called from any thread.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace detail {

/// Which addresses of this process are shared mappings of which file. One per process.
class file_mappings {
 public:
  [[nodiscard]] static file_mappings& instance() {
    static file_mappings mappings;
    return mappings;
  }

  void insert(const void* data, std::uint64_t bytes, int descriptor, std::uint64_t offset) {
    const std::lock_guard lock{mutex_};
    entries_[reinterpret_cast<std::uintptr_t>(data)] = {bytes, descriptor, offset};
  }
  void erase(const void* data) noexcept {
    const std::lock_guard lock{mutex_};
    entries_.erase(reinterpret_cast<std::uintptr_t>(data));
  }

  /// The known mapping that the whole range lies in; else the range itself.
  [[nodiscard]] memory_range around(const memory_range& range) const {
    const auto first = reinterpret_cast<std::uintptr_t>(range.data);
    const std::lock_guard lock{mutex_};
    const auto after = entries_.upper_bound(first);
    if (after == entries_.begin()) return range;
    const auto& [begin, mapping] = *std::prev(after);
    const std::uint64_t inside = first - begin;
    if (inside > mapping.bytes || range.bytes > mapping.bytes - inside) return range;
    return {range.data - inside, mapping.bytes, memory_kind::host, mapping.descriptor, mapping.offset};
  }

 private:
  struct mapping_entry {
    std::uint64_t bytes = 0;
    int descriptor = -1;
    std::uint64_t offset = 0;
  };
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, mapping_entry> entries_;
};

}  // namespace detail

/// Makes a file mapping of the user's own known to the host memory space, for as long as this object lives.
///
///     void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
///     tensorhub::file_mapping known{data, bytes, fd, 0};
///
/// The mapping must be MAP_SHARED, and the object must outlive every worker that was given a tensor inside
/// it. The descriptor is duplicated: the caller may close its own. Tensors of one mapping are registered with
/// the bytes between them (transfer/registration.hpp): map no secret there.
class file_mapping {
 public:
  file_mapping(const void* data, std::uint64_t bytes, int descriptor, std::uint64_t offset)
      : data_{data}, descriptor_{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)} {
    if (!descriptor_) {
      throw error(errc::system_failed,
                  std::string{"the file of a mapping cannot be duplicated: "} + std::strerror(errno));
    }
    detail::file_mappings::instance().insert(data, bytes, descriptor_.get(), offset);
  }
  ~file_mapping() { detail::file_mappings::instance().erase(data_); }
  file_mapping(const file_mapping&) = delete;
  file_mapping& operator=(const file_mapping&) = delete;

 private:
  const void* data_;
  detail::unique_fd descriptor_;
};

/// Model of `memory_space` (concepts/memory_space.hpp).
struct host_memory {
  using concept_tag = memory_space_tag;
  static constexpr bool host_accessible = true;

  /// Zero-filled pages of a memfd; plain anonymous pages where the kernel has no memfd.
  class allocation {
   public:
    explicit allocation(std::uint64_t bytes) : bytes_{bytes} {
      if (bytes == 0 || bytes > limits::shard_bytes) {
        throw error(errc::invalid_argument, "cannot allocate " + std::to_string(bytes) + " bytes");
      }
      descriptor_.reset(::memfd_create("tensorhub", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (descriptor_ && ::ftruncate(descriptor_.get(), static_cast<off_t>(bytes)) != 0) descriptor_.reset();
      // Its length stays, so that a reader's mapping of it cannot fault. Unsealed it is only not mapped.
      constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW;
      if (descriptor_) static_cast<void>(::fcntl(descriptor_.get(), F_ADD_SEALS, seals));
      const int flags = descriptor_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
      void* const memory =
          ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor_ ? descriptor_.get() : -1, 0);
      if (memory == MAP_FAILED) {
        throw error(errc::system_failed,
                    "no memory for " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
      }
      data_ = static_cast<std::byte*>(memory);
      if (descriptor_) detail::file_mappings::instance().insert(data_, bytes_, descriptor_.get(), 0);
    }
    allocation(allocation&& other) noexcept
        : data_{std::exchange(other.data_, nullptr)},
          bytes_{std::exchange(other.bytes_, 0)},
          descriptor_{std::move(other.descriptor_)} {}
    allocation& operator=(allocation&& other) noexcept {
      if (this != &other) {
        release();
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
        descriptor_ = std::move(other.descriptor_);
      }
      return *this;
    }
    ~allocation() { release(); }

    [[nodiscard]] memory_range range() const noexcept {
      return {data_, bytes_, memory_kind::host, descriptor_.get(), 0};
    }
    [[nodiscard]] std::byte* data() const noexcept { return data_; }

   private:
    void release() noexcept {
      if (data_ == nullptr) return;
      if (descriptor_) detail::file_mappings::instance().erase(data_);
      ::munmap(data_, bytes_);
    }
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
    detail::unique_fd descriptor_;
  };

  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{bytes}; }

  /// What is known of any memory of the process. Throws `invalid_argument` for null.
  [[nodiscard]] memory_range describe(void* data, std::uint64_t bytes) {
    if (data == nullptr) throw error(errc::invalid_argument, "null is no memory");
    memory_range range{static_cast<std::byte*>(data), bytes};
    const memory_range known = allocation_around(range);
    range.backing_fd = known.backing_fd;
    if (known.backing_fd >= 0)
      range.backing_offset = known.backing_offset + static_cast<std::uint64_t>(range.data - known.data);
    return range;
  }

  /// The allocation or known mapping that the whole range lies in; else the range itself.
  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    return detail::file_mappings::instance().around(range);
  }

  void copy(void* to, const void* from, std::uint64_t bytes) noexcept { std::memcpy(to, from, bytes); }
};
static_assert(memory_space<host_memory>);

}  // namespace tensorhub::inline TENSORHUB_MODE
