#pragma once
/// \file message.hpp
/// The object that a completion's context points to: a piece of a read, or a message of the handshake.
///
/// Thread safety: none.

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/protocol.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

enum class operation_kind : std::uint8_t { piece, message };

/// Providers may use `context` while the operation is outstanding (FI_CONTEXT, FI_CONTEXT2).
struct operation {
  ::fi_context2 context{};
  operation_kind kind;
  explicit operation(operation_kind its_kind) noexcept : kind{its_kind} {}
  operation(const operation&) = delete;
  operation& operator=(const operation&) = delete;

  [[nodiscard]] static operation* from(void* context) noexcept { return static_cast<operation*>(context); }
};

/// A datagram with its memory, which is registered if the provider requires that.
struct message : operation {
  datagram content{};
  unique_fid<::fid_mr> memory{};
  std::uint64_t owner = 0;     ///< number of the serving endpoint that received it
  std::size_t came_bytes = 0;  ///< received
  bool sends = false;
  bool busy = false;  ///< posted, not completed
  int result = 0;     ///< of the last completion: 0, or a libfabric error number

  message(const provider& chosen, ::fid_domain* domain);
  [[nodiscard]] void* descriptor() const noexcept { return memory ? ::fi_mr_desc(memory.get()) : nullptr; }

  /// Returns 0, or a negative error number; -FI_EAGAIN: try again after progress.
  [[nodiscard]] int send(::fid_ep* endpoint, ::fi_addr_t to) noexcept;
  [[nodiscard]] int receive(::fid_ep* endpoint) noexcept;
  void complete(std::size_t bytes, int error_number) noexcept;
  [[nodiscard]] bool holds(std::uint64_t magic) const noexcept;
  /// The address that the sender has written into it. Precondition: `holds`.
  [[nodiscard]] std::span<const std::byte> address() const noexcept {
    return std::span{content.address}.first(content.address_bytes);
  }
  void write_address(const raw_address& address);
};

/// An addressed endpoint together with its address vector.
struct addressed_endpoint {
  unique_fid<::fid_av> peers{};
  unique_fid<::fid_ep> endpoint{};  // closed before the vector
  raw_address own_address{};

  addressed_endpoint() = default;
  addressed_endpoint(const provider& chosen, ::fid_domain* domain, ::fi_info* info, ::fid_cq* cq);

  /// False: the bytes, which may come from a stranger, are no address of this endpoint's provider.
  [[nodiscard]] bool takes(std::span<const std::byte> address) const noexcept {
    return own_address.has_form_of(address);
  }
  /// FI_ADDR_NOTAVAIL: it is not taken, or the provider refuses it.
  [[nodiscard]] ::fi_addr_t insert(std::span<const std::byte> address) noexcept;
  void remove(::fi_addr_t handle) noexcept { static_cast<void>(::fi_av_remove(peers.get(), &handle, 1, 0)); }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/message.ipp"
#endif
