// Transport same_host in transport_bench.

#include <tensorhub/transports/same_host.hpp>

#include "kinds.hpp"
#include "transport_run.hpp"

namespace transport_bench {

namespace {

struct same_host_traits {
  using transport = tensorhub::transports::same_host;
  using options = transport::options;
  static constexpr std::string_view summary = "mapped memory files and process_vm_readv, on one machine";
  static constexpr std::string_view streams_are = "";

  static option_table<options> table() {
    using tensorhub::transports::backing_files;
    using tensorhub::transports::memory_attach;
    option_table<options> out;
    out.field("copy_threads", &options::copy_threads,
              "threads that copy, per transport; 0: two, on one core one")
        .field("streaming_from", &options::streaming_from_bytes, "reads of this size on bypass the caches")
        .choice(
            "files", &options::files,
            {{"map", backing_files::map}, {"read", backing_files::read}, {"ignore", backing_files::ignore}},
            "how memory with a file behind it is read")
        .choice("attach", &options::attach,
                {{"automatic", memory_attach::automatic}, {"never", memory_attach::never}},
                "whether other memory is read by process_vm_readv")
        .field("allow_any_tracer", &options::allow_any_tracer,
               "source: let readers attach that are not its parent (Yama)")
        .field("peer_timeout", &options::peer_timeout, "silence that ends a read (--timeout)");
    return out;
  }
  static void prepare(options& out, const party_settings& settings) {
    out.peer_timeout = settings.peer_timeout;
  }
};

}  // namespace

transport_kind same_host_kind() {
  return make_kind<same_host_traits>();
}

}  // namespace transport_bench
