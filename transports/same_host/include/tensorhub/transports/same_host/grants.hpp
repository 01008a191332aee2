#pragma once
/// \file grants.hpp
/// The grant page: words that say what is permitted at this moment, written by the source, seen by all of its
/// readers (see protocol.hpp).
///
/// The page is a memfd that is sealed against shrinking and against being mapped for writing by anybody else.
/// It is sparse: only what is used takes memory.
///
/// Why the seqlock holds: a source stores the word, then a fence, then (after `revoke` has returned) it may
/// change the bytes. A reader loads the bytes, then a fence, then the word. If it still finds the old number,
/// its load of the word comes before the source's store, and so do the loads of the bytes before any change.
/// (H.-J. Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012.)
///
/// Thread safety: `grant_page` may be used from any thread; `grant_view` is read-only.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

#ifdef F_SEAL_FUTURE_WRITE
inline constexpr int seal_future_write = F_SEAL_FUTURE_WRITE;
#else
inline constexpr int seal_future_write = 0x0010;  // Linux 5.1; glibc names it later
#endif

inline constexpr std::uint64_t no_grant = 0;  ///< of a slot that is free, or whose owner has gone
inline constexpr std::uint64_t cut_off_grant = 1;
inline constexpr std::uint64_t first_grant = 16;

/// A whole file, mapped shared.
class file_mapping_view {
 public:
  file_mapping_view() = default;
  /// Empty if the kernel refuses; errno says why.
  file_mapping_view(int descriptor, std::uint64_t bytes, int protection) noexcept {
    void* const memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return;
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }
  file_mapping_view(file_mapping_view&& other) noexcept
      : data_{std::exchange(other.data_, nullptr)}, bytes_{std::exchange(other.bytes_, 0)} {}
  file_mapping_view& operator=(file_mapping_view&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~file_mapping_view() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// The file cannot become shorter, so that a mapping of it cannot fault.
[[nodiscard]] inline bool is_sealed_against_shrinking(int descriptor) noexcept {
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

[[nodiscard]] inline std::uint64_t file_bytes(int descriptor) noexcept {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 && facts.st_size > 0 ? static_cast<std::uint64_t>(facts.st_size)
                                                               : 0;
}

using grant_word = std::atomic<std::uint64_t>;
static_assert(sizeof(grant_word) == 8 && grant_word::is_always_lock_free);

struct grant {
  std::uint32_t slot = 0;
  std::uint64_t number = no_grant;
};

/// The source's side.
class grant_page {
 public:
  static constexpr std::uint32_t slots = 1u << 20;  ///< regions and connections at one time

  grant_page() : file_{::memfd_create("tensorhub-grants", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
    if (file_ && ::ftruncate(file_.get(), slots * sizeof(grant_word)) == 0)
      view_ = file_mapping_view{file_.get(), slots * sizeof(grant_word), PROT_READ | PROT_WRITE};
    if (!view_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
      throw error(errc::transport_failed,
                  std::string{"same_host: no shared memory for grants: "} + std::strerror(errno));
    // Older kernels do not know this one; readers map the page read-only anyway.
    static_cast<void>(::fcntl(file_.get(), F_ADD_SEALS, seal_future_write));
  }
  grant_page(const grant_page&) = delete;
  grant_page& operator=(const grant_page&) = delete;

  [[nodiscard]] int file() const noexcept { return file_.get(); }

  /// A slot with a number that was never used before. Throws `limit_exceeded` when all are taken.
  [[nodiscard]] grant take() {
    const std::lock_guard lock{mutex_};
    grant fresh;
    if (!free_.empty()) {
      fresh.slot = free_.back();
      free_.pop_back();
    } else if (used_ < slots) {
      // So that `give_back` never allocates.
      if (free_.capacity() <= used_) free_.reserve(std::uint64_t{2} * (used_ + 32));
      fresh.slot = used_++;
    } else {
      throw error(errc::limit_exceeded, "same_host: " + std::to_string(slots) +
                                            " regions and connections are in use, and there is no room for "
                                            "more: register larger pieces");
    }
    fresh.number = ++last_number_;
    word(fresh.slot).store(fresh.number, std::memory_order_seq_cst);
    return fresh;
  }
  /// The slot's permission ends now; a new one begins.
  [[nodiscard]] grant renew(std::uint32_t slot) noexcept {
    const std::lock_guard lock{mutex_};
    const grant fresh{slot, ++last_number_};
    end(slot, fresh.number);
    return fresh;
  }
  /// The slot's permission ends now, with this word in its place.
  void end(std::uint32_t slot, std::uint64_t value) noexcept {
    word(slot).store(value, std::memory_order_seq_cst);
    // What the caller does to the bytes from here on comes after the store, for every observer.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  /// The slot's permission ends now, and somebody else may get the slot.
  void give_back(std::uint32_t slot) noexcept {
    const std::lock_guard lock{mutex_};
    end(slot, no_grant);
    free_.push_back(slot);
  }

 private:
  [[nodiscard]] grant_word& word(std::uint32_t slot) const noexcept {
    return *reinterpret_cast<grant_word*>(view_.data() + std::uint64_t{slot} * sizeof(grant_word));
  }

  detail::unique_fd file_;
  file_mapping_view view_;
  std::mutex mutex_;
  std::vector<std::uint32_t> free_;
  std::uint32_t used_ = 0;
  std::uint64_t last_number_ = first_grant;
};

/// A reader's side.
class grant_view {
 public:
  grant_view() = default;
  /// Empty if this is no grant page.
  explicit grant_view(int descriptor) noexcept {
    const std::uint64_t bytes = file_bytes(descriptor);
    if (bytes < sizeof(grant_word) || bytes > grant_page::slots * sizeof(grant_word)) return;
    if (is_sealed_against_shrinking(descriptor)) view_ = file_mapping_view{descriptor, bytes, PROT_READ};
  }
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(view_); }
  [[nodiscard]] bool has(std::uint32_t slot) const noexcept {
    return slot < view_.bytes() / sizeof(grant_word);
  }
  /// Pre-condition: has(slot).
  [[nodiscard]] std::uint64_t value(std::uint32_t slot) const noexcept {
    return reinterpret_cast<const grant_word*>(view_.data() + std::uint64_t{slot} * sizeof(grant_word))
        ->load(std::memory_order_acquire);
  }
  [[nodiscard]] bool holds(const grant& given) const noexcept { return value(given.slot) == given.number; }

 private:
  file_mapping_view view_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
