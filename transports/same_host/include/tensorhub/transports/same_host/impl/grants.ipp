#pragma once
/// \file grants.ipp
/// Definitions of grants.hpp.

#include <cerrno>
#include <string>

#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL grant_page::grant_page()
    : file_{::memfd_create("tensorhub-grants", MFD_CLOEXEC | MFD_ALLOW_SEALING)} {
  if (file_ && detail::set_file_bytes(file_.get(), slots * sizeof(grant_word)))
    view_ = file_mapping_view{file_.get(), slots * sizeof(grant_word), PROT_READ | PROT_WRITE};
  if (!view_ || ::fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    throw error(errc::transport_failed,
                "same_host: no shared memory for grants: " + detail::file_trouble(errno));
  // Older kernels do not know this seal; readers map the page read-only anyway.
  static_cast<void>(::fcntl(file_.get(), F_ADD_SEALS, detail::seal_future_write));
}

TENSORHUB_DECL grant grant_page::take() {
  const std::lock_guard lock{mutex_};
  grant fresh;
  if (!free_.empty()) {
    fresh.slot = free_.back();
    free_.pop_back();
  } else if (used_ < slots) {
    // Ensures that `give_back` never allocates.
    if (free_.capacity() <= used_) free_.reserve(std::uint64_t{2} * (used_ + 32));
    fresh.slot = used_++;
  } else {
    throw error(errc::limit_exceeded, "same_host: " + std::to_string(slots) +
                                          " regions and connections are in use, which is the maximum: "
                                          "register fewer, larger ranges");
  }
  fresh.number = ++last_number_;
  word(fresh.slot).store(fresh.number, std::memory_order_seq_cst);
  return fresh;
}

TENSORHUB_DECL grant grant_page::renew(std::uint32_t slot) noexcept {
  const std::lock_guard lock{mutex_};
  const grant fresh{slot, ++last_number_};
  end(slot, fresh.number);
  return fresh;
}

TENSORHUB_DECL void grant_page::end(std::uint32_t slot, std::uint64_t value) noexcept {
  word(slot).store(value, std::memory_order_seq_cst);
  // For every observer, later writes of the caller come after the store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

TENSORHUB_DECL void grant_page::give_back(std::uint32_t slot) noexcept {
  const std::lock_guard lock{mutex_};
  end(slot, no_grant);
  free_.push_back(slot);
}

TENSORHUB_DECL grant_word& grant_page::word(std::uint32_t slot) const noexcept {
  return *reinterpret_cast<grant_word*>(view_.data() + std::uint64_t{slot} * sizeof(grant_word));
}

TENSORHUB_DECL grant_view::grant_view(int descriptor) noexcept {
  const std::uint64_t bytes = file_bytes(descriptor);
  if (bytes < sizeof(grant_word) || bytes > grant_page::slots * sizeof(grant_word)) return;
  if (is_sealed_against_shrinking(descriptor)) view_ = file_mapping_view{descriptor, bytes, PROT_READ};
}

TENSORHUB_DECL std::uint64_t grant_view::value(std::uint32_t slot) const noexcept {
  return reinterpret_cast<const grant_word*>(view_.data() + std::uint64_t{slot} * sizeof(grant_word))
      ->load(std::memory_order_acquire);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
