// What is decided from a provider's properties, and the order in which its objects are closed.

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <tensorhub/transports/libfabric.hpp>

namespace {

namespace wire = tensorhub::transports::libfabric_detail;
using tensorhub::incarnation;

/// The domains that were opened since `watch`, and those that could not be closed.
struct watched_domains {
  static inline ::fi_ops_fabric of_fabric{};
  static inline ::fi_ops of_domain{};
  static inline int (*open)(::fid_fabric*, ::fi_info*, ::fid_domain**, void*) = nullptr;
  static inline int (*close)(::fid*) = nullptr;
  static inline std::atomic<int> opened = 0;
  static inline std::atomic<int> not_closed = 0;

  static void watch(::fid_fabric& fabric) {
    of_fabric = *fabric.ops;
    open = of_fabric.domain;
    of_fabric.domain = [](::fid_fabric* of, ::fi_info* info, ::fid_domain** domain, void* context) {
      const int result = open(of, info, domain, context);
      if (result != 0) return result;
      of_domain = *(*domain)->fid.ops;
      close = of_domain.close;
      of_domain.close = [](::fid* object) {
        const int ended = close(object);
        if (ended != 0) ++not_closed;
        return ended;
      };
      (*domain)->fid.ops = &of_domain;
      ++opened;
      return result;
    };
    fabric.ops = &of_fabric;
  }
};

}  // namespace

TEST_CASE("libfabric: deregistration is final where a device itself performs the reads, and nowhere else") {
  using wire::deregistration_is_final;
  for (const std::optional<bool> emulates :
       {std::optional<bool>{}, std::optional{true}, std::optional{false}}) {
    CHECK(deregistration_is_final("verbs", emulates));
    CHECK(deregistration_is_final("verbs;ofi_rxm", emulates));
    CHECK(deregistration_is_final("efa", emulates) == (emulates == false));
    for (const char* const other :
         {"verbs;ofi_rxd", "verbs;ofi_rxm;ofi_hook", "efa;ofi_rxd", "efa-of-another-name", "tcp",
          "tcp;ofi_rxm", "shm", "net", "sockets", "udp;ofi_rxd", ""})
      CHECK_MESSAGE(!deregistration_is_final(other, emulates), other);
  }
}

TEST_CASE("libfabric: the messages of a greeting endpoint end before their domain") {
  tensorhub::transports::libfabric_options options;
  options.provider = "shm";
  wire::provider provider{options};
  watched_domains::watch(*provider.fabric());
  // As of a provider that needs it; those of this machine do not.
  provider.listening_info()->domain_attr->mr_mode |= FI_MR_LOCAL | FI_MR_PROV_KEY;
  REQUIRE(provider.needs_local_registration());
  { const wire::source serving{provider, options, incarnation{1}, 2}; }
  CHECK(watched_domains::opened == 1);
  CHECK(watched_domains::not_closed == 0);
}
