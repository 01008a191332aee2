#pragma once
/// \file grants.hpp
/// The grant page: words that state the current permissions. The source writes them, and all of its readers
/// see them (see protocol.hpp).
///
/// The page is a memfd that is sealed against shrinking and against writable mappings of other processes. The
/// file is sparse: unused slots take no memory.
///
/// The seqlock is correct because of this order: a source stores the word, then a fence, then (after `revoke`
/// has returned) may change the bytes. A reader loads the bytes, then a fence, then the word. If it still
/// finds the old number, its load of the word comes before the source's store, and so do the loads of the
/// bytes before any change. (H.-J. Boehm, "Can seqlocks get along with programming language memory models?",
/// MSPC 2012.)
///
/// Thread safety: `grant_page` may be used from any thread; `grant_view` is read-only.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/file_view.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

using detail::file_bytes;
using detail::file_mapping_view;
using detail::is_sealed_against_shrinking;

inline constexpr std::uint64_t no_grant = 0;  ///< the slot is free, or its owner has ended
inline constexpr std::uint64_t cut_off_grant = 1;
inline constexpr std::uint64_t first_grant = 16;

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

  grant_page();
  grant_page(const grant_page&) = delete;
  grant_page& operator=(const grant_page&) = delete;

  [[nodiscard]] int file() const noexcept { return file_.get(); }

  /// Takes a slot, with a number that was never used before. Throws `limit_exceeded` when all are taken.
  [[nodiscard]] grant take();
  /// Ends the slot's permission now, and begins a new one.
  [[nodiscard]] grant renew(std::uint32_t slot) noexcept;
  /// Ends the slot's permission now, and stores this word in its place.
  void end(std::uint32_t slot, std::uint64_t value) noexcept;
  /// Ends the slot's permission now, and frees the slot for another owner.
  void give_back(std::uint32_t slot) noexcept;

 private:
  [[nodiscard]] grant_word& word(std::uint32_t slot) const noexcept;

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
  /// Empty if the file is not a grant page.
  explicit grant_view(int descriptor) noexcept;
  [[nodiscard]] explicit operator bool() const noexcept { return static_cast<bool>(view_); }
  [[nodiscard]] bool has(std::uint32_t slot) const noexcept {
    return slot < view_.bytes() / sizeof(grant_word);
  }
  /// Precondition: has(slot).
  [[nodiscard]] std::uint64_t value(std::uint32_t slot) const noexcept;
  [[nodiscard]] bool holds(const grant& given) const noexcept { return value(given.slot) == given.number; }

 private:
  file_mapping_view view_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/grants.ipp"
#endif
