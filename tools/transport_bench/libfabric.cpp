// Transport libfabric in transport_bench.

#include <tensorhub/transports/libfabric.hpp>

#include "kinds.hpp"
#include "transport_run.hpp"

namespace transport_bench {

namespace {

struct libfabric_traits {
  using transport = tensorhub::transports::libfabric;
  using options = transport::options;
  static constexpr std::string_view summary = "any provider of libfabric: tcp, verbs, shm, efa, ...";
  static constexpr std::string_view streams_are = "";

  static option_table<options> table() {
    using tensorhub::transports::fabric_endpoint;
    option_table<options> out;
    out.field("provider", &options::provider, "as fi_info -l names it: tcp, verbs, shm, tcp;ofi_rxm, efa")
        .field("fabric", &options::fabric, "only this fabric")
        .field("domain", &options::domain, "only this network device")
        .choice("endpoint", &options::endpoint_type,
                {{"automatic", fabric_endpoint::automatic},
                 {"connected", fabric_endpoint::connected},
                 {"addressed", fabric_endpoint::addressed}},
                "FI_EP_MSG or FI_EP_RDM")
        .field("listen_host", &options::listen_host, "interface of the data (the control connection's)")
        .field("listen_port", &options::listen_port, "port that readers connect to; 0: any free one")
        .field("advertised_host", &options::advertised_host, "what readers connect to; empty: listen_host")
        .field("piece", &options::piece_bytes, "a read travels in pieces of this size")
        .field("pieces_in_flight", &options::pieces_in_flight, "so many at a time on each endpoint")
        .field("largest_registration", &options::largest_registration_bytes,
               "larger regions are registered in parts; 0: the provider's limit")
        .field("peer_timeout", &options::peer_timeout, "silence that ends a read (--timeout)");
    return out;
  }
  static void prepare(options& out, const party_settings& settings) {
    if (!settings.host.empty()) out.listen_host = settings.host;
    out.peer_timeout = settings.peer_timeout;
  }
};

}  // namespace

transport_kind libfabric_kind() {
  return make_kind<libfabric_traits>();
}

}  // namespace transport_bench
