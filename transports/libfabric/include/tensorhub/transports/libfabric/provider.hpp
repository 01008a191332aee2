#pragma once
/// \file provider.hpp
/// Choice of a provider by options, and the fabric and domain opened on it.
///
/// Thread safety: an opened provider is constant; libfabric's own calls on it are thread-safe (FI_THREAD_SAFE
/// is asked for).

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// What we can do for a provider that asks for it. Left out on purpose: FI_MR_RAW (keys longer than 64 bits)
/// and FI_MR_ENDPOINT (memory bound to endpoints); providers that need them are not found.
inline constexpr int offered_mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

inline constexpr std::uint64_t wanted_caps = FI_MSG | FI_SEND | FI_RECV | FI_RMA | FI_READ | FI_REMOTE_READ;

/// `with_devices`: memory of devices is asked for, too.
[[nodiscard]] unique_info make_hints(const libfabric_options& options, bool connected,
                                     bool with_devices = false);

/// fi_getinfo as an owner; empty if there is nothing.
[[nodiscard]] unique_info get_info(const char* host, const char* service, std::uint64_t flags,
                                   const ::fi_info* hints);

/// "tcp, tcp;ofi_rxm, shm": what this machine has that can read remote memory (of devices).
[[nodiscard]] std::string available_providers(bool with_devices = false);

/// The first entry that fits, as a copy of its own. (Some providers take the names in the hints as a wish.)
[[nodiscard]] unique_info first_that_fits(const unique_info& list, const libfabric_options& options);

/// Providers whose addresses are not IP addresses take no host.
[[nodiscard]] bool has_hosts(const libfabric_options& options);

[[nodiscard]] unique_info choose_provider(const libfabric_options& options);

/// An opened fabric and domain, and what is to know about the provider.
class provider {
 public:
  explicit provider(const libfabric_options& options);

  /// A further domain, which shares no registered memory with the first.
  [[nodiscard]] unique_fid<::fid_domain> open_domain() const;

  [[nodiscard]] ::fid_fabric* fabric() const noexcept { return fabric_.get(); }
  [[nodiscard]] ::fid_domain* domain() const noexcept { return domain_.get(); }
  /// As chosen: with the address and port to listen at.
  [[nodiscard]] ::fi_info* listening_info() const noexcept { return info_.get(); }
  /// The same without a port: for endpoints that nobody looks for.
  [[nodiscard]] ::fi_info* own_info() const noexcept { return own_.get(); }

  [[nodiscard]] std::string name() const { return info_->fabric_attr->prov_name; }
  [[nodiscard]] bool is_verbs() const noexcept {
    return std::string_view{info_->fabric_attr->prov_name}.starts_with("verbs");
  }
  [[nodiscard]] bool connected() const noexcept { return info_->ep_attr->type == FI_EP_MSG; }
  [[nodiscard]] bool needs_local_registration() const noexcept { return has_mode(FI_MR_LOCAL); }
  /// FI_HMEM: regions may be device memory, which is registered in any case.
  [[nodiscard]] bool takes_device_memory() const noexcept { return (info_->caps & FI_HMEM) != 0; }
  [[nodiscard]] bool has_virtual_addresses() const noexcept { return has_mode(FI_MR_VIRT_ADDR); }
  [[nodiscard]] bool chooses_keys() const noexcept { return has_mode(FI_MR_PROV_KEY); }
  [[nodiscard]] std::size_t key_bytes() const noexcept { return info_->domain_attr->mr_key_size; }
  [[nodiscard]] std::uint64_t max_message_bytes() const noexcept { return info_->ep_attr->max_msg_size; }
  /// True where a device does the reading, so that nothing of a memory leaves once it is deregistered. The
  /// others answer a read bit by bit out of the memory itself, and go on after its deregistration.
  [[nodiscard]] bool deregistration_is_final() const { return is_verbs() || name().starts_with("efa"); }

  /// Provider shm maps its peers' queues: within one process a closed endpoint's peers would crash. Its rooms
  /// are left alone for a while before they are closed.
  [[nodiscard]] bool closes_late() const { return name() == "shm"; }

  /// Closing an endpoint of `ofi_rxm` 1.17 with reads outstanding crashes now and then.
  [[nodiscard]] bool crashes_on_close() const noexcept;

  /// "provider tcp, fabric 127.0.0.0/8, domain lo".
  [[nodiscard]] std::string description() const;

  /// The address that an opened endpoint has got.
  template <typename Fid>
  [[nodiscard]] raw_address address_of(Fid& endpoint) const {
    raw_address out{info_->addr_format, std::vector<std::byte>(longest_name_bytes)};
    std::size_t bytes = out.bytes.size();
    const int result = ::fi_getname(&endpoint.fid, out.bytes.data(), &bytes);
    if (result != 0 || bytes > out.bytes.size())
      fail(description() + ": an endpoint does not tell its address: " + reason(result));
    out.bytes.resize(bytes);
    if (out.format == FI_SOCKADDR && bytes == sizeof(sockaddr_in)) out.format = FI_SOCKADDR_IN;
    if (out.format == FI_SOCKADDR && bytes == sizeof(sockaddr_in6)) out.format = FI_SOCKADDR_IN6;
    return out;
  }

 private:
  static constexpr std::size_t longest_name_bytes = 256;

  [[nodiscard]] bool has_mode(int bit) const noexcept { return (info_->domain_attr->mr_mode & bit) != 0; }
  [[nodiscard]] static std::string text_of(const char* text) { return text == nullptr ? "?" : text; }
  static void clear_port(::fi_info& info) noexcept;

  unique_info info_;
  unique_info own_;
  unique_fid<::fid_fabric> fabric_;
  unique_fid<::fid_domain> domain_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/provider.ipp"
#endif
