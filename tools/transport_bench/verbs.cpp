// Transport verbs in transport_bench.

#include <tensorhub/transports/verbs.hpp>

#include "kinds.hpp"
#include "transport_run.hpp"

namespace transport_bench {

namespace {

struct verbs_traits {
  using transport = tensorhub::transports::verbs;
  using options = transport::options;
  static constexpr std::string_view summary = "RDMA reads over InfiniBand and RoCE (rdma-core)";
  static constexpr std::string_view streams_are = "queue pairs per endpoint and rail";

  static option_table<options> table() {
    using tensorhub::transports::completion_mode;
    using tensorhub::transports::revocation_mode;
    option_table<options> out;
    out.field("device", &options::device, "only this device, as ibv_devices names it")
        .field("near_device", &options::near_device,
               "a device near this PCI address; empty: near this thread")
        .field("device_port", &options::device_port, "only this port of it; 0: any")
        .field("gid_index", &options::gid_index, "only this entry of its GID table; -1: any")
        .field("listen_addresses", &options::listen_addresses,
               "one address per rail (the control connection's, unless a device is named or it is loopback)")
        .field("listen_port", &options::listen_port, "port that readers connect to; 0: any free one")
        .field("queue_pair_depth", &options::queue_pair_depth, "work requests outstanding on each queue pair")
        .field("work_request", &options::work_request_bytes, "largest work request; reads are cut")
        .field("signal_interval", &options::signal_interval, "work requests per completion, within a read")
        .choice("completions", &options::completions,
                {{"events", completion_mode::events}, {"polling", completion_mode::polling}},
                "how a waiting reader learns of completions")
        .field("relaxed_ordering", &options::relaxed_ordering, "where the device offers it")
        .choice("revocation", &options::revocation,
                {{"automatic", revocation_mode::automatic},
                 {"memory_windows", revocation_mode::memory_windows},
                 {"registration", revocation_mode::registration}},
                "what peers' keys are")
        .field("largest_registration", &options::largest_registration_bytes,
               "larger regions are registered in pieces; 0: what the device takes")
        .field("retry_timeout", &options::retry_timeout, "4.096 us * 2^n until a request is repeated")
        .field("retry_count", &options::retry_count, "how often")
        .field("peer_timeout", &options::peer_timeout, "no progress for so long ends a read (--timeout)");
    return out;
  }
  static void prepare(options& out, const party_settings& settings) {
    const bool is_loopback = settings.host.starts_with("127.") || settings.host == "::1";
    if (!settings.host.empty() && !is_loopback && !settings.options.contains("device"))
      out.listen_addresses = {settings.host};
    out.queue_pairs = settings.streams;
    out.peer_timeout = settings.peer_timeout;
  }
};

}  // namespace

transport_kind verbs_kind() {
  return make_kind<verbs_traits>();
}

}  // namespace transport_bench
