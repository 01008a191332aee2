/// \file layers.cpp
/// The layer table holds in every #include line; and each checker is shown a breach that it must find.

#include "layers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

using namespace structure;

namespace {

/// A header with these include lines.
source_file header(std::string path, std::string includes) {
  return {std::move(path), "#pragma once\n" + std::move(includes) + "\n"};
}

}  // namespace

TEST_CASE("every file of the library includes only what its layer may") {
  std::size_t count = 0;
  const complaints found = check_files(source_tree(), is_library_file, check_layers, &count);
  REQUIRE(count > 30);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("the state machines are pure, through every header that they include") {
  REQUIRE(std::any_of(source_tree().begin(), source_tree().end(),
                      [](const source_file& file) { return is_pure(include_name(file.path)); }));
  const complaints found = check_pure_headers(source_tree());
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("the core's umbrella reaches neither another component nor the server") {
  const complaints found = check_umbrella(source_tree());
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("at depth one lies only what users include") {
  const complaints found = check_files(source_tree(), is_library_file, check_depth_one);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("examples use public headers only") {
  const auto is_example = [](std::string_view path) { return path.starts_with("examples/") && is_cpp(path); };
  std::size_t count = 0;
  const auto umbrella = std::find_if(source_tree().begin(), source_tree().end(), [](const source_file& file) {
    return file.path == "include/tensorhub/tensorhub.hpp";
  });
  REQUIRE(umbrella != source_tree().end());
  const auto check = [&](const source_file& file) { return check_example(file, *umbrella); };
  const complaints found = check_files(source_tree(), is_example, check, &count);
  REQUIRE(count > 0);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("the checker of layers finds planted breaches") {
  const auto breaches = [](std::string path, std::string includes) {
    return check_layers(header(std::move(path), std::move(includes))).size();
  };
  // Upwards, sideways, and into what nobody may include.
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include \"tensorhub/concepts/clock.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/config.hpp", "#include <tensorhub/types/ids.hpp>") == 1);
  CHECK(breaches("include/tensorhub/policy/a.hpp", "#include \"tensorhub/transfer/pull.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/memory/a.hpp", "  #  include \"tensorhub/service/log.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include \"tensorhub/worker.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/worker/worker.hpp", "#include \"tensorhub/testing/archetypes.hpp\"") ==
        1);
  CHECK(breaches("include/tensorhub/tensorhub.hpp", "#include \"tensorhub/transports/tcp.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/testing/a.hpp", "#include \"tensorhub/tensorhub.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/testing/a.hpp", "#include \"tensorhub/transports/tcp.hpp\"") == 1);
  CHECK(breaches("transports/tcp/include/tensorhub/transports/tcp.hpp",
                 "#include \"tensorhub/transfer/pull.hpp\"") == 1);
  CHECK(breaches("transports/tcp/include/tensorhub/transports/tcp.hpp",
                 "#include \"tensorhub/transports/verbs.hpp\"") == 1);
  // Libraries in the wrong place.
  CHECK(breaches("include/tensorhub/memory/host.hpp", "#include <cuda_runtime.h>") == 1);
  CHECK(breaches("include/tensorhub/memory/cuda.hpp", "#include <cuda.h>") == 0);
  CHECK(breaches("include/tensorhub/memory/cuda/lane.hpp", "#include \"tensorhub/service/codec.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/memory/host.hpp", "#include \"tensorhub/memory/cuda/lane.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include <infiniband/verbs.h>") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include <rdma/fabric.h>") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include <prometheus/exposer.h>") == 1);
  CHECK(breaches("include/tensorhub/worker/worker.hpp", "#include \"tensorhub/prometheus.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/worker/worker.hpp", "#include <ATen/core/TensorBase.h>") == 1);
  CHECK(breaches("include/tensorhub/types/tensor.hpp", "#include <c10/core/Storage.h>") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include <curl/curl.h>") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include \"tensorhub/etcd/election.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/etcd/a.hpp", "#include <zmq.hpp>") == 1);
  CHECK(breaches("include/tensorhub/transfer/a.hpp", "#include <zmq.h>") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include <zmq.hpp>") == 1);
  CHECK(breaches("include/tensorhub/security.hpp", "#include <zmq.hpp>") == 1);
  CHECK(breaches("include/tensorhub/service/a.hpp", "#include <cereal/cereal.hpp>") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include <sodium.h>") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include <xxhash.h>") == 1);
  CHECK(breaches("include/tensorhub/impl/error.ipp", "#include \"tensorhub/types/ids.hpp\"") == 1);
  CHECK(breaches("transports/tcp/include/tensorhub/transports/tcp.hpp", "#include <zmq.hpp>") == 1);
  CHECK(breaches("include/tensorhub/testing/a.hpp", "#include <doctest/doctest.h>") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include \"ids.hpp\"") == 1);
  CHECK(breaches("transports/tcp/include/tensorhub/transports/tcp.hpp", "#include <openssl/ssl.h>") == 1);
  CHECK(breaches("transports/tcp/include/tensorhub/transports/tcp.hpp",
                 "#include \"tensorhub/transports/tls.hpp\"") == 1);
  // A file of definitions has its header's place.
  CHECK(breaches("include/tensorhub/transfer/impl/a.ipp", "#include <zmq.h>") == 1);
  CHECK(breaches("include/tensorhub/impl/server.ipp", "#include \"tensorhub/worker/worker.hpp\"") == 1);
  CHECK(breaches("include/tensorhub/impl/no_such_header.ipp", "") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include \"tensorhub/service/impl/codec.ipp\"") == 1);
  // What the table does not know.
  CHECK(breaches("include/tensorhub/plans/a.hpp", "") == 1);
  CHECK(breaches("include/tensorhub/types/a.hpp", "#include \"tensorhub/plans/a.hpp\"") == 1);
}

TEST_CASE("the checker of layers accepts what is allowed") {
  const auto accepts = [](std::string path, std::string includes) {
    return check_layers(header(std::move(path), std::move(includes))).empty();
  };
  CHECK(accepts("include/tensorhub/types/a.hpp", "#include \"tensorhub/types/ids.hpp\"\n#include <span>"));
  CHECK(accepts("include/tensorhub/service/a.hpp", "#include <zmq.h>\n#include \"tensorhub/policy/b.hpp\""));
  CHECK(accepts("include/tensorhub/service/zmq_socket.hpp", "#include <zmq.hpp>"));
  CHECK(accepts("include/tensorhub/service/impl/client.ipp", "#include <zmq.hpp>"));
  CHECK(accepts("include/tensorhub/types/impl/capability.ipp", "#include <sodium.h>"));
  CHECK(accepts("include/tensorhub/impl/security.ipp",
                "#include \"tensorhub/security.hpp\"\n#include <zmq.h>"));
  CHECK(accepts("include/tensorhub/hub.hpp", "#include \"tensorhub/publisher.hpp\""));
  CHECK(accepts("include/tensorhub/testing/a.hpp", "#include \"tensorhub/hub.hpp\""));
  CHECK(accepts("transports/tcp/include/tensorhub/transports/tcp.hpp",
                "#include \"tensorhub/transports/tcp/stream.hpp\"\n#include \"tensorhub/detail/a.hpp\""));
  CHECK(accepts("transports/verbs/include/tensorhub/transports/verbs.hpp",
                "#include <infiniband/verbs.h>\n#include \"tensorhub/concepts/transport.hpp\""));
  CHECK(accepts("transports/tls/include/tensorhub/transports/tls.hpp",
                "#include <openssl/ssl.h>\n#include \"tensorhub/transports/tcp/source.hpp\""));
  CHECK(accepts("include/tensorhub/types/a.hpp", "// #include <zmq.h>"));
  CHECK(accepts("include/tensorhub/prometheus.hpp",
                "#include <prometheus/exposer.h>\n#include \"tensorhub/service/server.hpp\""));
  CHECK(accepts("include/tensorhub/etcd.hpp",
                "#include \"tensorhub/etcd/http.hpp\"\n#include \"tensorhub/service/server.hpp\""));
}

TEST_CASE("the checker of pure headers finds a socket at the end of a chain") {
  const std::vector<source_file> tree{
      header("include/tensorhub/service/catalog.hpp", "#include \"tensorhub/service/names.hpp\""),
      header("include/tensorhub/service/names.hpp", "#include \"tensorhub/service/wire.hpp\""),
      header("include/tensorhub/service/wire.hpp", "#include <zmq.h>"),
      header("include/tensorhub/service/server.hpp", "#include <zmq.h>")};
  const complaints found = check_pure_headers(tree);
  REQUIRE(found.size() == 1);
  CHECK(found[0].find("wire.hpp includes zmq.h") != std::string::npos);
}

TEST_CASE("the checker of pure headers looks into files of definitions") {
  const std::vector<source_file> tree{
      header("include/tensorhub/service/catalog.hpp", "#include \"tensorhub/service/impl/catalog.ipp\""),
      header("include/tensorhub/service/impl/catalog.ipp", "#include <thread>")};
  CHECK(check_pure_headers(tree).size() == 2);  // of the header and of its definitions
}

TEST_CASE("the checker of the umbrella finds another component at the end of a chain") {
  std::vector<source_file> tree{
      header("include/tensorhub/tensorhub.hpp", "#include \"tensorhub/hub.hpp\""),
      header("include/tensorhub/hub.hpp", "#include \"tensorhub/worker/worker.hpp\""),
      header("include/tensorhub/worker/worker.hpp", "#include <thread>")};
  CHECK(check_umbrella(tree).empty());
  CHECK(check_umbrella({}).size() == 1);
  for (const char* other :
       {"etcd.hpp", "etcd/gateway.hpp", "prometheus.hpp", "memory/cuda/lane.hpp", "testing/faulty.hpp",
        "torch.hpp", "transports/tcp.hpp", "server.hpp", "service/catalog.hpp"}) {
    tree.back() =
        header("include/tensorhub/worker/worker.hpp", "#include \"tensorhub/" + std::string{other} + "\"");
    CHECK(check_umbrella(tree).size() == 1);
  }
}

TEST_CASE("the checker of depth one finds what is not for users") {
  CHECK(check_depth_one(header("include/tensorhub/worker_results.hpp", "")).size() == 1);
  CHECK(check_depth_one(header("include/tensorhub/server.ipp", "")).size() == 1);
  CHECK(check_depth_one(header("include/tensorhub/server.hpp", "")).empty());
  CHECK(check_depth_one(header("include/tensorhub/worker/results.hpp", "")).empty());
}

TEST_CASE("the checker of examples finds an inner header") {
  const source_file umbrella = header("include/tensorhub/tensorhub.hpp", "#include \"tensorhub/hub.hpp\"");
  const auto faults = [&](std::string text) {
    return check_example({"examples/a.cpp", std::move(text)}, umbrella).size();
  };
  CHECK(faults("#include <tensorhub/worker/worker.hpp>\n") == 1);
  CHECK(faults("#include <vector>\n#include \"tensorhub/transfer/pull.hpp\"\n") == 1);
  CHECK(faults("#include <tensorhub/transports/tcp.hpp>\n") == 0);
  CHECK(faults("#include <tensorhub/hub.hpp>\n#include <tensorhub/types/tensor.hpp>\n") == 0);
}
