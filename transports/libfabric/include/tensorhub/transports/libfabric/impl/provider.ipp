#pragma once
/// \file provider.ipp
/// Definitions of provider.hpp.

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <string>
#include <utility>

#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/transports/libfabric/provider.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

TENSORHUB_DECL unique_info make_hints(const libfabric_options& options, bool connected, bool with_devices) {
  unique_info hints{::fi_allocinfo()};
  if (!hints) fail("no memory for the hints of fi_getinfo");
  const auto copied = [](const std::string& text) { return text.empty() ? nullptr : ::strdup(text.c_str()); };
  hints->caps = wanted_caps;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = connected ? FI_EP_MSG : FI_EP_RDM;
  hints->domain_attr->mr_mode = offered_mr_mode;
  if (with_devices) {
    hints->caps |= FI_HMEM;
    hints->domain_attr->mr_mode |= FI_MR_HMEM;
  }
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->name = copied(options.domain);
  hints->fabric_attr->prov_name = copied(options.provider);
  hints->fabric_attr->name = copied(options.fabric);
  // An addressed endpoint serves one peer. Its buffers are allocated with it, and the default sizes are for
  // thousands of peers.
  if (!connected) {
    hints->tx_attr->size = 128;
    hints->rx_attr->size = 64;
  }
  // Only then does a message that waits know its connection, which fi_av_insert looks at.
  if (!connected && has_to_know_senders(options.provider, ::fi_version())) hints->caps |= FI_SOURCE;
  // Provider shm reads a peer's memory by itself, without a check of the key, unless the reads of one
  // endpoint must be answered in order: then the peer answers them and checks the key.
  if (options.provider == "shm") hints->tx_attr->msg_order = FI_ORDER_RAR;
  return hints;
}

TENSORHUB_DECL unique_info get_info(const char* host, const char* service, std::uint64_t flags,
                                    const ::fi_info* hints) {
  ::fi_info* found = nullptr;
  if (::fi_getinfo(api_version, host, service, flags, hints, &found) != 0) return {};
  return unique_info{found};
}

/// As libfabric understands a variable that is true.
[[nodiscard]] TENSORHUB_DECL bool is_set(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) return false;
  std::string value{text};
  for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return value == "1" || value == "on" || value == "yes" || value == "true";
}

TENSORHUB_DECL std::string available_providers(bool with_devices) {
  std::set<std::string> names;
  for (const bool connected : {true, false}) {
    libfabric_options any;
    any.provider.clear();
    const unique_info hints = make_hints(any, connected, with_devices);
    const unique_info all = get_info(nullptr, nullptr, 0, hints.get());
    for (const ::fi_info* each = all.get(); each != nullptr; each = each->next) {
      if (why_unusable(each->fabric_attr->prov_name, ::fi_version()).empty())
        names.insert(each->fabric_attr->prov_name);
    }
  }
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

TENSORHUB_DECL unique_info first_that_fits(const unique_info& list, const libfabric_options& options) {
  const auto fits = [](const std::string& wanted, const char* name) {
    return wanted.empty() || (name != nullptr && wanted == name);
  };
  for (const ::fi_info* each = list.get(); each != nullptr; each = each->next) {
    if (fits(options.provider, each->fabric_attr->prov_name) &&
        fits(options.fabric, each->fabric_attr->name) && fits(options.domain, each->domain_attr->name))
      return unique_info{::fi_dupinfo(each)};
  }
  return {};
}

TENSORHUB_DECL unique_info choose_provider(const libfabric_options& options) {
  if (options.provider.empty())
    throw error(errc::invalid_argument,
                "libfabric: no provider is named; there are: " + available_providers());
  const bool both = options.endpoint_type == fabric_endpoint::automatic;
  const std::string port = std::to_string(options.listen_port);
  const bool by_host = options.has_hosts();
  const std::string host = detail::or_loopback(options.listen_host);
  for (const bool with_devices : {true, false}) {
    if (with_devices && !options.device_memory) continue;
    for (const bool connected : {true, false}) {
      if (!both && connected != (options.endpoint_type == fabric_endpoint::connected)) continue;
      const unique_info hints = make_hints(options, connected, with_devices);
      const unique_info all = get_info(by_host ? host.c_str() : nullptr, by_host ? port.c_str() : nullptr,
                                       by_host ? FI_SOURCE : 0, hints.get());
      if (unique_info found = first_that_fits(all, options)) return found;
    }
  }
  // Find out which option does not fit, by repeating the query with fewer of them.
  const auto exists = [&](const libfabric_options& less) {
    for (const bool connected : {true, false}) {
      const unique_info hints = make_hints(less, connected);
      const unique_info all = get_info(nullptr, nullptr, 0, hints.get());
      if (first_that_fits(all, less)) return true;
    }
    return false;
  };
  libfabric_options less;
  less.provider = options.provider;
  if (!exists(less))
    fail("there is no provider '" + options.provider +
         "' with remote reads here; there are: " + available_providers());
  less.fabric = options.fabric;
  if (!exists(less)) fail("provider '" + options.provider + "' has no fabric '" + options.fabric + "'");
  less.domain = options.domain;
  if (!exists(less))
    fail("provider '" + options.provider + "' has no domain (network device) '" + options.domain +
         "' in fabric '" + options.fabric + "'; `fi_info -p '" + options.provider + "'` lists them");
  fail("provider '" + options.provider + "'" +
       (options.domain.empty() ? "" : ", domain '" + options.domain + "'") + " cannot listen at '" + host +
       "' with " +
       (both ? "any"
             : (options.endpoint_type == fabric_endpoint::connected ? "connected (FI_EP_MSG)"
                                                                    : "addressed (FI_EP_RDM)")) +
       " endpoints: set listen_host to an address of its network device, or choose another endpoint_type");
}

TENSORHUB_DECL std::string why_unusable(std::string_view provider, std::uint32_t library) {
  // In 1.18 it has become `tcp`, and does not crash.
  const bool is_net = provider == "net" || provider.starts_with("net;");
  if (is_net && library < FI_VERSION(1, 18))
    return "provider '" + std::string{provider} +
           "' of libfabric 1.17 crashes in a source when a reader goes away during a read: use provider "
           "'tcp'";
  if (provider == "shm" && !is_set("FI_SHM_DISABLE_CMA"))
    return "provider 'shm' lets a source that was stopped write into its reader's memory after the read has "
           "ended: set FI_SHM_DISABLE_CMA=1 in every process's environment, or use transports::same_host";
  return {};
}

TENSORHUB_DECL provider::provider(const libfabric_options& options) : info_{choose_provider(options)} {
  if (const std::string why = why_unusable(name(), ::fi_version()); !why.empty()) fail(why);
  const std::string where = description();
  ::fid_fabric* fabric = nullptr;
  if (const int result = ::fi_fabric(info_->fabric_attr, &fabric, nullptr); result != 0)
    fail(where + ": the fabric cannot be opened: " + reason(result));
  fabric_.reset(fabric);
  domain_ = open_domain();
  own_ = unique_info{::fi_dupinfo(info_.get())};
  if (!own_) fail(where + ": no memory");
  clear_port(*own_);
  deregistration_is_final_ = libfabric_detail::deregistration_is_final(name(), emulates_reads());
}

TENSORHUB_DECL std::optional<bool> provider::emulates_reads() const {
  constexpr int efa_emulated_read = FI_OPT_EFA_RNR_RETRY + 1;  // FI_OPT_EFA_EMULATED_READ of later headers
  ::fid_ep* opened = nullptr;
  if (name() != "efa" || ::fi_endpoint(domain_.get(), own_.get(), &opened, nullptr) != 0) return {};
  const unique_fid<::fid_ep> asked{opened};
  bool answer = true;
  std::size_t bytes = sizeof answer;
  const int result = ::fi_getopt(&opened->fid, FI_OPT_ENDPOINT, efa_emulated_read, &answer, &bytes);
  return result == 0 ? std::optional{answer} : std::nullopt;
}

TENSORHUB_DECL unique_fid<::fid_domain> provider::open_domain() const {
  ::fid_domain* domain = nullptr;
  if (const int result = ::fi_domain(fabric_.get(), info_.get(), &domain, nullptr); result != 0)
    fail(description() + ": the domain cannot be opened: " + reason(result));
  return unique_fid<::fid_domain>{domain};
}

TENSORHUB_DECL bool provider::takes(std::span<const std::byte> address) const {
  const auto* const own = static_cast<const std::byte*>(own_->src_addr);
  return raw_address{own_->addr_format, {own, own + own_->src_addrlen}}.has_form_of(address);
}

TENSORHUB_DECL std::string provider::description() const {
  return "provider " + name() + ", fabric " + text_of(info_->fabric_attr->name) + ", domain " +
         text_of(info_->domain_attr->name);
}

TENSORHUB_DECL void provider::clear_port(::fi_info& info) noexcept {
  if (info.src_addr == nullptr) return;
  auto* const generic = static_cast<sockaddr*>(info.src_addr);
  const bool is_ip = info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6 ||
                     info.addr_format == FI_SOCKADDR;
  if (!is_ip) return;
  if (generic->sa_family == AF_INET && info.src_addrlen >= sizeof(sockaddr_in))
    static_cast<sockaddr_in*>(info.src_addr)->sin_port = 0;
  if (generic->sa_family == AF_INET6 && info.src_addrlen >= sizeof(sockaddr_in6))
    static_cast<sockaddr_in6*>(info.src_addr)->sin6_port = 0;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
