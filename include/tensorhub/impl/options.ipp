#pragma once
/// \file options.ipp
/// What options.hpp declares.

#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL void unpublish_report::add(const unpublish_report& other) {
  finished += other.finished;
  moved += other.moved;
  cut_off += other.cut_off;
  forced = forced || other.forced;
  lost = lost || other.lost;
  seconds = std::max(seconds, other.seconds);
}
TENSORHUB_DECL void update_report::add(const pull_progress& transfer) {
  bytes = transfer.bytes;
  for (const source_progress& source : transfer.sources) {
    sources.push_back(source.name);
    paths.push_back(source.path);
    source_bytes.push_back(source.bytes);
  }
}

TENSORHUB_DECL std::size_t servers_of(const worker_options& options) {
  return 1 + static_cast<std::size_t>(std::ranges::count(options.server, ','));
}

TENSORHUB_DECL bool serves_other_machines(const worker_options& options) {
  constexpr std::string_view scheme = "tcp://";
  for (const std::string& server : detail::split_list(options.server)) {
    if (!server.starts_with(scheme)) continue;
    const std::string_view host_and_port = std::string_view{server}.substr(scheme.size());
    if (!detail::is_local_host(host_and_port.substr(0, host_and_port.rfind(':')))) return true;
  }
  return false;
}

TENSORHUB_DECL worker_options validated(worker_options options) {
  const auto refuse = [](std::string sentence) { throw error(errc::invalid_argument, sentence); };
  if (options.server.empty()) refuse("worker_options::server is empty: give the reference server's address");
  if (options.model.empty()) refuse("worker_options::model is empty");
  if (options.replica.empty()) refuse("worker_options::replica is empty");
  for (const std::string* name : {&options.model, &options.replica, &options.location.datacenter,
                                  &options.location.rack, &options.location.host, &options.location.device}) {
    if (name->size() > limits::name_bytes)
      throw error(errc::limit_exceeded, "a name has more than 512 bytes: " + name->substr(0, 64));
  }
  if (options.shard.count == 0 || options.shard.index >= options.shard.count) {
    refuse("shard " + to_string(options.shard) + " does not exist: the index must be below the count");
  }
  if (options.location.host.empty()) {
    char name[256] = {};
    if (::gethostname(name, sizeof name - 1) == 0) options.location.host = name;
  }
  if (options.security) validate(*options.security, servers_of(options));
  options.log = never_throwing(std::move(options.log));
  options.lanes = std::clamp<std::size_t>(options.lanes, 1, 64);
  options.window_chunks = std::clamp<std::size_t>(options.window_chunks, 1, 1024);
  options.far_window_chunks = std::clamp<std::size_t>(options.far_window_chunks, 1, 1024);
  return options;
}

TENSORHUB_DECL error_context context_of(const worker_options& options) {
  error_context out;
  out.model = options.model;
  out.replica = options.replica;
  out.shard = options.shard.index;
  return out;
}
TENSORHUB_DECL worker_options beside(worker_options options, std::string_view role) {
  options.replica += "@" + std::string{role};
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
