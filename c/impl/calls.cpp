/// \file calls.cpp
/// Definitions of calls.hpp, and the functions about errors and versions.

#include "calls.hpp"

#include <tensorhub/policy/integrity/blake3_128.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <tensorhub/version.hpp>

namespace tensorhub_c {

namespace {

using tensorhub::transports::same_host;
using tensorhub::transports::tcp;
using near_or_tcp = tensorhub::first_of<same_host, tcp>;

/// A worker with keys has digests that a source cannot forge, unless it trusts its sources.
template <typename Transport>
[[nodiscard]] tensorhub::worker_policies over(const tensorhub_worker_options& given,
                                              typename Transport::options through) {
  using tensorhub::group_consistent;
  using tensorhub::host_memory;
  if (given.secret_key != nullptr && given.trust_sources == 0)
    return tensorhub::policies_of<Transport, group_consistent, tensorhub::blake3_128, host_memory>(
        std::move(through));
  return tensorhub::policies_of<Transport, group_consistent, tensorhub::xxh3_128, host_memory>(
      std::move(through));
}

void refuse_unused(const std::string& transport, const char* option, bool is_given) {
  if (is_given)
    throw error(errc::invalid_argument, std::string{"options."} + option + " is set, and transport '" +
                                            transport + "' has no such option: leave it out, or take 'auto'");
}

/// What the reports of an update and of an install have in common, and their two parts.
template <typename Report>
[[nodiscard]] tensorhub_update_report filled(const Report& done, double wait_seconds, double pull_seconds) {
  tensorhub_update_report out{};
  out.version = done.version.value;
  out.kept = done.kept ? 1 : 0;
  out.lost = done.lost ? 1 : 0;
  out.bytes = done.bytes;
  out.seconds = done.seconds;
  out.wait_seconds = wait_seconds;
  out.pull_seconds = pull_seconds;
  return out;
}

}  // namespace

tensorhub::version_selector selector_of(tensorhub_selector kind, std::uint64_t version) {
  switch (kind) {
    case TENSORHUB_LATEST:
      return tensorhub::latest;
    case TENSORHUB_EXACTLY:
      return tensorhub::exactly(version);
    case TENSORHUB_AT_LEAST:
      return tensorhub::at_least(version);
  }
  throw error(errc::invalid_argument, "the selector is " + std::to_string(static_cast<int>(kind)) +
                                          ": take one of tensorhub_selector");
}

tensorhub::worker_options options_of(const tensorhub_worker_options& given) {
  tensorhub::worker_options out;
  out.server = &required(given.server, "options.server");
  out.model = &required(given.model, "options.model");
  out.replica = &required(given.replica, "options.replica");
  out.shard = {given.shard_index, std::max<std::uint32_t>(1, given.shard_count)};
  out.location.datacenter = text_of(given.datacenter);
  out.location.rack = text_of(given.rack);
  out.location.host = text_of(given.host);
  if (given.chunk_bytes != 0) out.chunk_bytes = given.chunk_bytes;
  if (given.lanes != 0) out.lanes = given.lanes;
  if (given.offload_limit_bytes != 0) out.offload_limit_bytes = given.offload_limit_bytes;
  out.spot = given.spot != 0;
  out.join_timeout = time_of(given.join_timeout_ms, out.join_timeout);
  out.security = security_of(given);
  if (given.trust_sources != 0 && !out.security)
    throw error(errc::invalid_argument,
                "options.trust_sources is set, and there are no keys: it is for workers that have keys");
  if (out.security) out.security->trust_sources = given.trust_sources != 0;
  out.log = log_of(given.log, given.log_context);
  return out;
}

tensorhub::worker_options options_of_other(const tensorhub_worker_options& given) {
  if (given.prefer_local != 0)
    throw error(errc::invalid_argument,
                "options.prefer_local is set, and this worker is no subscriber: leave it out");
  return options_of(given);
}

tensorhub::worker_policies policies_of(const tensorhub_worker_options& given) {
  const std::string name = given.transport == nullptr ? "auto" : given.transport;
  if (given.listen_port > 65535)
    throw error(errc::invalid_argument,
                "options.listen_port is " + std::to_string(given.listen_port) + ": a port is at most 65535");
  tcp::options through;
  if (given.listen_host != nullptr) through.listen_host = given.listen_host;
  through.listen_port = static_cast<std::uint16_t>(given.listen_port);
  through.advertised_host = text_of(given.advertised_host);
  const auto near = given.for_tenants != 0 ? same_host::options::for_tenants() : same_host::options{};
  if (name == "auto") return over<near_or_tcp>(given, near_or_tcp::with(near, std::move(through)));
  if (name == "same_host") {
    refuse_unused(name, "listen_host", !text_of(given.listen_host).empty());
    refuse_unused(name, "listen_port", given.listen_port != 0);
    refuse_unused(name, "advertised_host", !text_of(given.advertised_host).empty());
    return over<same_host>(given, near);
  }
  if (name == "tcp") {
    refuse_unused(name, "for_tenants", given.for_tenants != 0);
    return over<tcp>(given, std::move(through));
  }
  throw error(errc::invalid_argument, "options.transport is '" + name + "': take auto, tcp or same_host");
}

tensorhub_publish_report told(const tensorhub::publish_report& done) {
  tensorhub_publish_report out{};
  out.version = done.version.value;
  out.bytes = done.bytes;
  out.seconds = done.seconds;
  return out;
}
tensorhub_publish_report told(const tensorhub::snapshot_report& done) {
  tensorhub_publish_report out = told(tensorhub::publish_report{done.version, done.bytes, 0, done.seconds});
  out.lost = done.lost ? 1 : 0;
  return out;
}
tensorhub_publish_report told(const tensorhub::unpublish_report& done) {
  tensorhub_publish_report out{};
  out.seconds = done.seconds;
  out.readers_finished = done.finished;
  out.readers_moved = done.moved;
  out.readers_cut_off = done.cut_off;
  out.forced = done.forced ? 1 : 0;
  out.lost = done.lost ? 1 : 0;
  out.changed = done.changed.empty() ? 0 : 1;
  return out;
}
tensorhub_update_report told(const tensorhub::update_report& done) {
  tensorhub_update_report out = filled(done, done.wait_seconds, done.pull_seconds);
  out.unchanged_bytes = done.unchanged_bytes;
  return out;
}
tensorhub_update_report told(const tensorhub::install_report& done) {
  return filled(done, done.drain_seconds, done.copy_seconds);
}

std::function<void(const tensorhub::log_line&)> log_of(void (*log)(void*, std::int32_t, const char*),
                                                       void* context) {
  if (log == nullptr) return {};
  return [log, context](const tensorhub::log_line& line) {
    log(context, static_cast<std::int32_t>(line.level), tensorhub::to_text(line).c_str());
  };
}

}  // namespace tensorhub_c

extern "C" {

uint32_t tensorhub_abi_version(void) {
  return TENSORHUB_ABI_VERSION;
}
const char* tensorhub_version(void) {
  static const std::string text = std::to_string(TENSORHUB_VERSION_MAJOR) + "." +
                                  std::to_string(TENSORHUB_VERSION_MINOR) + "." +
                                  std::to_string(TENSORHUB_VERSION_PATCH);
  return text.c_str();
}

const char* tensorhub_status_name(tensorhub_status status) {
  return tensorhub::to_string(static_cast<tensorhub::errc>(status)).data();
}
int32_t tensorhub_status_retryable(tensorhub_status status) {
  return tensorhub::retryable(static_cast<tensorhub::errc>(status)) ? 1 : 0;
}
tensorhub_status tensorhub_error_status(const tensorhub_error* error) {
  return error == nullptr ? TENSORHUB_OK : error->status;
}
const char* tensorhub_error_text(const tensorhub_error* error) {
  return error == nullptr ? "" : error->text.c_str();
}
void tensorhub_error_free(tensorhub_error* error) {
  delete error;
}

}  // extern "C"
