#pragma once
/// \file provider.hpp
/// Selects a provider by the options, and opens its fabric and domain.
///
/// Thread safety: any thread; libfabric's own calls on an opened provider are thread-safe (the transport
/// requests FI_THREAD_SAFE).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/libfabric/fid.hpp"
#include "tensorhub/transports/libfabric/options.hpp"
#include "tensorhub/types/device_access.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// The registration modes that the transport supports. FI_MR_RAW (keys longer than 64 bits) and
/// FI_MR_ENDPOINT (memory bound to endpoints) are left out on purpose; providers that need them are not
/// found.
inline constexpr int offered_mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

inline constexpr std::uint64_t wanted_caps = FI_MSG | FI_SEND | FI_RECV | FI_RMA | FI_READ | FI_REMOTE_READ;

/// `with_devices`: also requests device memory.
[[nodiscard]] unique_info make_hints(const libfabric_options& options, bool connected,
                                     bool with_devices = false);

/// Owns the result of fi_getinfo; empty if nothing was found.
[[nodiscard]] unique_info get_info(const char* host, const char* service, std::uint64_t flags,
                                   const ::fi_info* hints);

/// "tcp, tcp;ofi_rxm": the providers of this machine that can read remote (device) memory and are used.
[[nodiscard]] std::string available_providers(bool with_devices = false);

/// A copy of the first entry that fits. (Some providers do not enforce the names in the hints.)
[[nodiscard]] unique_info first_that_fits(const unique_info& list, const libfabric_options& options);

[[nodiscard]] unique_info choose_provider(const libfabric_options& options);

/// True if a device performs the reads, so that no byte leaves once the memory is deregistered. Other
/// providers answer a read piece by piece from the memory itself, and continue after its deregistration.
/// `emulates_reads`: what an endpoint of provider efa says; empty: nothing.
[[nodiscard]] constexpr bool deregistration_is_final(std::string_view provider,
                                                     std::optional<bool> emulates_reads) noexcept {
  return provider == "verbs" || provider == "verbs;ofi_rxm" || (provider == "efa" && emulates_reads == false);
}

/// Closing an endpoint with outstanding reads crashes. It can be left open instead, because its bytes move
/// only while its own completion queue is read. Nowhere else is that true: since 1.18, reading any completion
/// queue of a domain moves the bytes of all endpoints, and a device moves bytes by itself.
[[nodiscard]] constexpr bool crashes_on_close(std::string_view provider, std::uint32_t library) noexcept {
  return provider == "tcp;ofi_rxm" && library < FI_VERSION(1, 18);
}

/// True if inserting an address crashes while messages wait for a receive (a stranger can send any number),
/// unless the endpoint reports who has sent them (FI_SOURCE). Seen with 2.1.0, and not with 1.17.
[[nodiscard]] constexpr bool has_to_know_senders(std::string_view provider, std::uint32_t library) noexcept {
  return provider == "tcp;ofi_rxm" && library >= FI_VERSION(1, 18);
}

/// Why no transport uses this provider; empty: it may be used.
[[nodiscard]] std::string why_unusable(std::string_view provider, std::uint32_t library);

/// An opened fabric and domain, and the provider's properties.
class provider {
 public:
  explicit provider(const libfabric_options& options);

  /// Opens another domain, which shares no registered memory with the first.
  [[nodiscard]] unique_fid<::fid_domain> open_domain() const;

  [[nodiscard]] ::fid_fabric* fabric() const noexcept { return fabric_.get(); }
  [[nodiscard]] ::fid_domain* domain() const noexcept { return domain_.get(); }
  /// The selected entry, with the address and port to listen at.
  [[nodiscard]] ::fi_info* listening_info() const noexcept { return info_.get(); }
  /// The same without a port: for endpoints to which no peer connects.
  [[nodiscard]] ::fi_info* own_info() const noexcept { return own_.get(); }

  [[nodiscard]] std::string name() const { return info_->fabric_attr->prov_name; }
  [[nodiscard]] bool is_verbs() const noexcept {
    return std::string_view{info_->fabric_attr->prov_name}.starts_with("verbs");
  }
  [[nodiscard]] bool connected() const noexcept { return info_->ep_attr->type == FI_EP_MSG; }
  [[nodiscard]] bool needs_local_registration() const noexcept { return has_mode(FI_MR_LOCAL); }
  /// FI_HMEM: regions may be device memory, which always needs registration.
  [[nodiscard]] bool takes_device_memory() const noexcept { return (info_->caps & FI_HMEM) != 0; }
  [[nodiscard]] bool has_virtual_addresses() const noexcept { return has_mode(FI_MR_VIRT_ADDR); }
  [[nodiscard]] bool chooses_keys() const noexcept { return has_mode(FI_MR_PROV_KEY); }
  [[nodiscard]] std::size_t key_bytes() const noexcept { return info_->domain_attr->mr_key_size; }
  [[nodiscard]] std::uint64_t max_message_bytes() const noexcept { return info_->ep_attr->max_msg_size; }
  [[nodiscard]] bool deregistration_is_final() const noexcept { return deregistration_is_final_; }

  /// Provider shm maps its peers' queues: within one process the peers of a closed endpoint would crash. The
  /// source therefore stops driving its serving endpoints some time before it closes them.
  [[nodiscard]] bool closes_late() const { return name() == "shm"; }

  [[nodiscard]] bool crashes_on_close() const noexcept {
    return libfabric_detail::crashes_on_close(info_->fabric_attr->prov_name, ::fi_version());
  }

  /// False: the bytes, which may come from a stranger, are no address of this provider's endpoints.
  [[nodiscard]] bool takes(std::span<const std::byte> address) const;

  /// Runs `work`, in which the provider moves bytes: some providers copy those of a device by its driver, in
  /// whichever thread calls them. Of several devices the latest one will do, since copies find their own.
  template <typename Work>
  void drive(Work&& work) const {
    device_access* const device = device_.load(std::memory_order_acquire);
    if (device != nullptr)
      device->in_context(work);
    else
      work();
  }
  /// Memory of this device is registered; its context has been made.
  void note(device_access& device) const noexcept { device_.store(&device, std::memory_order_release); }

  /// "provider tcp, fabric 127.0.0.0/8, domain lo".
  [[nodiscard]] std::string description() const;

  /// The address of an opened endpoint.
  template <typename Fid>
  [[nodiscard]] raw_address address_of(Fid& endpoint) const {
    raw_address out{info_->addr_format, std::vector<std::byte>(longest_name_bytes)};
    std::size_t bytes = out.bytes.size();
    const int result = ::fi_getname(&endpoint.fid, out.bytes.data(), &bytes);
    if (result != 0 || bytes > out.bytes.size())
      fail(description() + ": the address of an endpoint cannot be read: " + reason(result));
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
  [[nodiscard]] std::optional<bool> emulates_reads() const;

  unique_info info_;
  unique_info own_;
  unique_fid<::fid_fabric> fabric_;
  unique_fid<::fid_domain> domain_;
  bool deregistration_is_final_ = false;
  mutable std::atomic<device_access*> device_ = nullptr;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/provider.ipp"
#endif
