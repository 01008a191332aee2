// Which transports this program was built with. TRANSPORT_BENCH_<NAME> is 1 where the component exists.

#include "kinds.hpp"

namespace transport_bench {

namespace {

[[maybe_unused]] transport_kind absent(std::string_view name, std::string_view summary,
                                       std::string_view needs) {
  transport_kind out;
  out.name = name;
  out.summary = summary;
  out.needs = needs;
  return out;
}

std::vector<transport_kind> all_kinds() {
  std::vector<transport_kind> out;
  out.push_back(tcp_kind());
#if TRANSPORT_BENCH_TLS
  out.push_back(tls_kind());
#else
  out.push_back(absent("tls", "TCP under TLS 1.3", "OpenSSL 3 at configure time (Debian: libssl-dev)"));
#endif
#if TRANSPORT_BENCH_SAME_HOST
  out.push_back(same_host_kind());
#else
  out.push_back(
      absent("same_host", "shared memory between processes of one machine", "the component same_host"));
#endif
#if TRANSPORT_BENCH_VERBS
  out.push_back(verbs_kind());
#else
  out.push_back(absent("verbs", "RDMA reads (InfiniBand, RoCE)",
                       "rdma-core at configure time (Debian: libibverbs-dev librdmacm-dev)"));
#endif
#if TRANSPORT_BENCH_LIBFABRIC
  out.push_back(libfabric_kind());
#else
  out.push_back(absent("libfabric", "any provider of libfabric (tcp, shm, verbs, efa, ...)",
                       "libfabric 1.17 or newer at configure time (Debian: libfabric-dev)"));
#endif
  return out;
}

}  // namespace

const std::vector<transport_kind>& transport_kinds() {
  static const std::vector<transport_kind> kinds = all_kinds();
  return kinds;
}

const transport_kind& kind_named(std::string_view name) {
  std::string built;
  for (const transport_kind& kind : transport_kinds()) {
    if (kind.name == name && kind.built) return kind;
    if (kind.name == name) {
      throw usage_error("transport " + std::string{name} + " is not built in: it needs " +
                        std::string{kind.needs});
    }
    if (kind.built) built += (built.empty() ? "" : ", ") + std::string{kind.name};
  }
  throw usage_error("there is no transport '" + std::string{name} + "'; this program has: " + built);
}

}  // namespace transport_bench
