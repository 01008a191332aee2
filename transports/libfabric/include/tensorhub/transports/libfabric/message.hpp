#pragma once
/// \file message.hpp
/// What a completion's context points to: a piece of a read, or a letter of the greeting.
///
/// Thread safety: none.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

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

  message(const provider& through, ::fid_domain* domain) : operation{operation_kind::letter} {
    if (!through.needs_local_registration()) return;
    ::fid_mr* registered = nullptr;
    const int failed =
        ::fi_mr_reg(domain, &content, sizeof content, FI_SEND | FI_RECV, 0, 0, 0, &registered, nullptr);
    if (failed != 0) fail(through.description() + ": no registered memory for messages: " + reason(failed));
    memory.reset(registered);
  }
  [[nodiscard]] void* descriptor() const noexcept { return memory ? ::fi_mr_desc(memory.get()) : nullptr; }

  /// 0, or a negative error number; -FI_EAGAIN: try again after progress.
  [[nodiscard]] int send(::fid_ep* through, ::fi_addr_t to) noexcept {
    sends = true;
    const auto posted = ::fi_send(through, &content, sizeof content, descriptor(), to, &context);
    busy = posted == 0;
    return static_cast<int>(posted);
  }
  [[nodiscard]] int receive(::fid_ep* through) noexcept {
    sends = false;
    came_bytes = 0;
    const auto posted = ::fi_recv(through, &content, sizeof content, descriptor(), FI_ADDR_UNSPEC, &context);
    busy = posted == 0;
    return static_cast<int>(posted);
  }
  void complete(std::size_t bytes, int error_number) noexcept {
    busy = false;
    came_bytes = bytes;
    result = error_number;
  }
  [[nodiscard]] bool holds_letter(std::uint64_t magic) const noexcept {
    return !busy && result == 0 && came_bytes == sizeof content && content.magic == magic &&
           content.address_bytes <= content.address.size();
  }
  void write_address(const raw_address& address) {
    if (address.bytes.size() > content.address.size())
      fail("an address of " + std::to_string(address.bytes.size()) + " bytes is too long");
    content.address_bytes = static_cast<std::uint32_t>(address.bytes.size());
    std::memcpy(content.address.data(), address.bytes.data(), address.bytes.size());
  }
};

/// Addressed endpoint of its own, with an address vector that lives as long.
struct addressed_endpoint {
  unique_fid<::fid_av> peers{};
  unique_fid<::fid_ep> endpoint{};  // closed before the vector

  addressed_endpoint() = default;
  addressed_endpoint(const provider& through, ::fid_domain* domain, ::fi_info* info, ::fid_cq* cq) {
    const auto check = [&through](const char* step, int result) {
      if (result != 0) fail(through.description() + ": " + step + ": " + reason(result));
    };
    ::fi_av_attr wanted{};
    wanted.type = FI_AV_UNSPEC;
    ::fid_av* vector = nullptr;
    check("no address vector", ::fi_av_open(domain, &wanted, &vector, nullptr));
    peers.reset(vector);
    ::fid_ep* opened = nullptr;
    check("no endpoint", ::fi_endpoint(domain, info, &opened, nullptr));
    endpoint.reset(opened);
    check("an endpoint takes no address vector", ::fi_ep_bind(opened, &vector->fid, 0));
    check("an endpoint takes no completion queue", ::fi_ep_bind(opened, &cq->fid, FI_TRANSMIT | FI_RECV));
    check("an endpoint cannot be enabled", ::fi_enable(opened));
  }

  [[nodiscard]] ::fi_addr_t insert(const void* address) noexcept {
    ::fi_addr_t handle = FI_ADDR_NOTAVAIL;
    return ::fi_av_insert(peers.get(), address, 1, &handle, 0, nullptr) == 1 ? handle : FI_ADDR_NOTAVAIL;
  }
  void remove(::fi_addr_t handle) noexcept { static_cast<void>(::fi_av_remove(peers.get(), &handle, 1, 0)); }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
