// Transport tls in transport_bench.

#include <tensorhub/transports/tls.hpp>

#include "kinds.hpp"
#include "transport_run.hpp"

namespace transport_bench {

namespace {

struct tls_traits {
  using transport = tensorhub::transports::tls;
  using options = transport::options;
  static constexpr std::string_view summary = "TCP under TLS 1.3 (needs certificate_file, key_file, ca_file)";
  static constexpr std::string_view streams_are = "connections per endpoint";

  static option_table<options> table() {
    option_table<options> out;
    out.field("certificate_file", &options::certificate_file, "this side's certificate (PEM); must be given")
        .field("key_file", &options::key_file, "its key (PEM); must be given")
        .field("ca_file", &options::ca_file, "authorities that are believed (PEM); must be given")
        .field("allowed_names", &options::allowed_names, "names that the other side may have; empty: any")
        .field("verify_host", &options::verify_host, "the source's certificate must name its host")
        .field("ciphersuites", &options::ciphersuites, "of TLS 1.3, best first")
        .field("kernel_tls", &options::kernel_tls, "the kernel encrypts, where it can");
    return out;
  }
  static void prepare(options& out, const party_settings& settings) {
    if (!settings.host.empty()) out.tcp.listen_host = settings.host;
    out.tcp.streams = settings.streams;
    out.tcp.peer_timeout = settings.peer_timeout;
  }
};

}  // namespace

transport_kind tls_kind() {
  return make_kind<tls_traits>();
}

}  // namespace transport_bench
