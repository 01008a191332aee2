#pragma once
/// \file message.hpp
/// What a completion's context points to: a piece of a read, or a letter of the greeting.
///
/// Thread safety: none.

#include <cstddef>
#include <cstdint>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

enum class operation_kind : std::uint8_t { piece, letter };

/// Providers may use `context` while the operation is outstanding (FI_CONTEXT, FI_CONTEXT2).
struct operation {
  ::fi_context2 context{};
  operation_kind kind;
  explicit operation(operation_kind what) noexcept : kind{what} {}
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  [[nodiscard]] static operation* from(void* context) noexcept { return static_cast<operation*>(context); }
};

/// A letter with its memory, registered where the provider wants that.
struct message : operation {
  letter content{};
  unique_fid<::fid_mr> memory{};
  std::uint64_t owner = 0;     ///< room that received it; the source's own number
  std::size_t came_bytes = 0;  ///< received
  bool sends = false;
  bool busy = false;  ///< posted, not completed
  int result = 0;     ///< of the last completion: 0, or a libfabric error number

  message(const provider& through, ::fid_domain* domain);
  [[nodiscard]] void* descriptor() const noexcept { return memory ? ::fi_mr_desc(memory.get()) : nullptr; }

  /// 0, or a negative error number; -FI_EAGAIN: try again after progress.
  [[nodiscard]] int send(::fid_ep* through, ::fi_addr_t to) noexcept;
  [[nodiscard]] int receive(::fid_ep* through) noexcept;
  void complete(std::size_t bytes, int error_number) noexcept;
  [[nodiscard]] bool holds_letter(std::uint64_t magic) const noexcept;
  void write_address(const raw_address& address);
};

/// Addressed endpoint of its own, with an address vector that lives as long.
struct addressed_endpoint {
  unique_fid<::fid_av> peers{};
  unique_fid<::fid_ep> endpoint{};  // closed before the vector

  addressed_endpoint() = default;
  addressed_endpoint(const provider& through, ::fid_domain* domain, ::fi_info* info, ::fid_cq* cq);

  [[nodiscard]] ::fi_addr_t insert(const void* address) noexcept;
  void remove(::fi_addr_t handle) noexcept { static_cast<void>(::fi_av_remove(peers.get(), &handle, 1, 0)); }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/message.ipp"
#endif
