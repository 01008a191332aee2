/// \file server.cpp
/// The reference server's functions.

#include <memory>
#include <tensorhub/key_files.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/service/log_queue.hpp>
#include <utility>

#include "calls.hpp"

struct tensorhub_server {
  explicit tensorhub_server(tensorhub::reference_server_options how) : core{std::move(how)} {}
  tensorhub::reference_server<> core;
};

namespace tensorhub_c {

namespace {

[[nodiscard]] tensorhub::reference_server_options server_options_of(const tensorhub_server_options& given) {
  tensorhub::reference_server_options out;
  if (given.address != nullptr) out.address = given.address;
  out.catalog.worker_timeout = time_of(given.worker_timeout_ms, out.catalog.worker_timeout);
  out.log = tensorhub::queued(log_of(given.log, given.log_context));
  if (given.secret_key == nullptr) {
    if (given.allowed_key_count != 0 || given.public_key != nullptr)
      throw error(
          errc::invalid_argument,
          "options have a public key or allowed keys but no secret_key: the server would admit everybody");
    return out;
  }
  tensorhub::server_security keys;
  keys.keys = {&required(given.public_key, "options.public_key"), given.secret_key};
  for (std::size_t i = 0; i < given.allowed_key_count; ++i) {
    const char* const given_line = (&required(given.allowed_keys, "options.allowed_keys"))[i];
    tensorhub::key_files_detail::allow_line(keys.allowed_clients,
                                            &required(given_line, "one of options.allowed_keys"));
  }
  out.security = std::move(keys);
  return out;
}

}  // namespace

}  // namespace tensorhub_c

using namespace tensorhub_c;

extern "C" {

tensorhub_status tensorhub_server_start(const tensorhub_server_options* options, tensorhub_server** server,
                                        tensorhub_error** error) {
  return guarded(error, [&] {
    required(server, "server") = nullptr;
    *server = new tensorhub_server{server_options_of(taken(options, "options"))};
  });
}
const char* tensorhub_server_address(const tensorhub_server* server) {
  return server == nullptr ? "" : server->core.address().c_str();
}
tensorhub_status tensorhub_server_allow(tensorhub_server* server, const char* line, tensorhub_error** error) {
  return guarded(error, [&] {
    auto& self = required(server, "server");
    tensorhub::client_allow_list given;
    tensorhub::key_files_detail::allow_line(given, &required(line, "line"));
    for (const auto& [key, rules] : given) self.core.allow(key, rules);
  });
}
tensorhub_status tensorhub_server_revoke(tensorhub_server* server, const char* key, int32_t* was_allowed,
                                         tensorhub_error** error) {
  return guarded(error, [&] {
    const bool was = required(server, "server").core.revoke(&required(key, "key"));
    if (was_allowed != nullptr) *was_allowed = was ? 1 : 0;
  });
}
void tensorhub_server_stop(tensorhub_server* server) {
  delete server;
}

}  // extern "C"
