// Transport tcp in transport_bench.

#include <tensorhub/transports/tcp.hpp>

#include "kinds.hpp"
#include "transport_run.hpp"

namespace transport_bench {

namespace {

struct tcp_traits {
  using transport = tensorhub::transports::tcp;
  using options = transport::options;
  static constexpr std::string_view summary = "TCP sockets, between any two machines";
  static constexpr std::string_view streams_are = "connections per endpoint";

  static option_table<options> table() {
    using tensorhub::transports::file_sending;
    option_table<options> out;
    out.field("listen_host", &options::listen_host,
              "interface that reads come in on (the control connection's)")
        .field("listen_port", &options::listen_port, "port that reads come in on; 0: any free one")
        .field("advertised_host", &options::advertised_host, "what readers connect to; empty: listen_host")
        .field("io_threads", &options::io_threads, "threads of the source that answer reads")
        .field("congestion_control", &options::congestion_control,
               "cubic, bbr, ...; auto: cubic on loopback, else the system's")
        .field("send_buffer", &options::send_buffer_bytes, "bytes of each socket; 0: the kernel tunes it")
        .field("receive_buffer", &options::receive_buffer_bytes,
               "bytes of each socket; 0: the kernel tunes it")
        .choice("send_from_file", &options::send_from_file,
                {{"automatic", file_sending::automatic},
                 {"always", file_sending::always},
                 {"never", file_sending::never}},
                "sendfile for memory with a file behind it; automatic: to other machines")
        .field("peer_timeout", &options::peer_timeout, "silence that ends a read (--timeout)");
    return out;
  }
  static void prepare(options& out, const party_settings& settings) {
    if (!settings.host.empty()) out.listen_host = settings.host;
    out.streams = settings.streams;
    out.peer_timeout = settings.peer_timeout;
  }
};

}  // namespace

transport_kind tcp_kind() {
  return make_kind<tcp_traits>();
}

}  // namespace transport_bench
