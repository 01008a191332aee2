// What is decided from a provider's properties, and the order in which its objects are closed.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <tensorhub/error.hpp>
#include <tensorhub/transports/libfabric.hpp>

namespace {

namespace wire = tensorhub::transports::libfabric_detail;
using tensorhub::incarnation;

/// No test of this program could use provider shm without it. libfabric reads it when it is first used.
[[maybe_unused]] const int shm_is_told = ::setenv("FI_SHM_DISABLE_CMA", "1", 0);

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

TEST_CASE("libfabric: only tcp;ofi_rxm of 1.17 leaves endpoints open that have reads in flight") {
  using wire::crashes_on_close;
  constexpr auto with_old_tcp = FI_VERSION(1, 17);
  constexpr auto with_new_tcp = FI_VERSION(1, 18);
  CHECK(crashes_on_close("tcp;ofi_rxm", with_old_tcp));
  CHECK(!crashes_on_close("tcp;ofi_rxm", with_new_tcp));
  CHECK(!crashes_on_close("tcp;ofi_rxm", FI_VERSION(2, 1)));
  for (const char* const other : {"verbs;ofi_rxm", "net;ofi_rxm", "tcp", "net", "shm", "sockets", "efa"})
    CHECK_MESSAGE(!crashes_on_close(other, with_old_tcp), other);
}

TEST_CASE("libfabric: endpoints of tcp;ofi_rxm report from 1.18 on who sent a message") {
  using wire::has_to_know_senders;
  CHECK(has_to_know_senders("tcp;ofi_rxm", FI_VERSION(1, 18)));
  CHECK(has_to_know_senders("tcp;ofi_rxm", FI_VERSION(2, 1)));
  CHECK(!has_to_know_senders("tcp;ofi_rxm", FI_VERSION(1, 17)));
  for (const char* const other : {"verbs;ofi_rxm", "tcp", "shm", "sockets", "efa", ""})
    CHECK_MESSAGE(!has_to_know_senders(other, FI_VERSION(2, 1)), other);
  for (const bool connected : {true, false}) {
    tensorhub::transports::libfabric_options options;
    options.provider = "tcp;ofi_rxm";
    const wire::unique_info hints = wire::make_hints(options, connected);
    const bool reports = (hints->caps & FI_SOURCE) != 0;
    CHECK(reports == (!connected && ::fi_version() >= FI_VERSION(1, 18)));
  }
}

TEST_CASE("libfabric: provider net is refused, since its sources crash, and the sentence says what to use") {
  using wire::why_unusable;
  CHECK(wire::available_providers().find("net") == std::string::npos);
  for (const char* const usable : {"tcp", "tcp;ofi_rxm", "shm", "verbs", "network", ""})
    CHECK_MESSAGE(why_unusable(usable, FI_VERSION(1, 17)).empty(), usable);
  for (const char* const net : {"net", "net;ofi_rxm"}) {
    CAPTURE(net);
    CHECK(!why_unusable(net, FI_VERSION(1, 17)).empty());
    CHECK(why_unusable(net, FI_VERSION(1, 18)).empty());
    std::string sentence;
    try {
      const wire::provider never{{.provider = net}};
    } catch (const tensorhub::error& refusal) {
      sentence = refusal.sentence();
    }
    CHECK_MESSAGE(sentence.find("tcp") != std::string::npos, sentence);
  }
}

TEST_CASE("libfabric: provider shm is refused unless sources are told not to write into readers' memory") {
  using wire::why_unusable;
  static constexpr const char* variable = "FI_SHM_DISABLE_CMA";
  const std::string before = std::getenv(variable);
  for (const char* const told : {"1", "on", "TRUE", "Yes"}) {
    ::setenv(variable, told, 1);
    CHECK_MESSAGE(why_unusable("shm", FI_VERSION(1, 17)).empty(), told);
    CHECK(wire::available_providers().find("shm") != std::string::npos);
  }
  for (const char* const told : {"0", "off", "", "no"}) {
    CAPTURE(told);
    ::setenv(variable, told, 1);
    CHECK(why_unusable("shm", FI_VERSION(2, 1)).find("FI_SHM_DISABLE_CMA=1") != std::string::npos);
    CHECK(wire::available_providers().find("shm") == std::string::npos);
    CHECK_THROWS_WITH_AS(wire::provider{{.provider = "shm"}}, doctest::Contains("FI_SHM_DISABLE_CMA=1"),
                         tensorhub::error);
  }
  ::unsetenv(variable);
  CHECK(!why_unusable("shm", FI_VERSION(1, 17)).empty());
  ::setenv(variable, before.c_str(), 1);
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
