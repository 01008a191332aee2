#pragma once
/// \file options.ipp
/// What options.hpp declares.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/server_groups.hpp"
#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/log_queue.hpp"
#include "tensorhub/types/plain_text.hpp"
#include "tensorhub/types/replica_name.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace options_detail {

/// One list without bars.
TENSORHUB_DECL std::string servers_of_model(const worker_options& options) {
  const auto groups = detail::split_groups(options.server);
  return groups[detail::group_of_model(options.model, groups.size())];
}

/// "host:port" of the servers of the list that are not on this machine.
TENSORHUB_DECL std::vector<std::string> remote_servers(const worker_options& options) {
  constexpr std::string_view scheme = "tcp://";
  std::vector<std::string> out;
  for (const std::string& server : detail::split_list(servers_of_model(options))) {
    // The control connection refuses what is no address.
    if (!server.starts_with(scheme) || !detail::is_server_address(server, 1)) continue;
    const std::string_view host_and_port = std::string_view{server}.substr(scheme.size());
    if (!detail::is_local_host(host_and_port.substr(0, host_and_port.rfind(':'))))
      out.emplace_back(host_and_port);
  }
  return out;
}

/// The address from which this machine reaches a server of the list, if possible one that other machines can
/// use; empty: there is no route to any.
TENSORHUB_DECL std::string host_towards_server(const worker_options& options) {
  std::string own;
  for (const std::string& server : remote_servers(options)) {
    const auto colon = server.rfind(':');
    std::string host = server.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    own = detail::own_address_towards(host, colon == server.npos ? "" : server.substr(colon + 1));
    if (!detail::is_local_host(own)) break;
  }
  return own;
}

/// The same, for up to `join_timeout`: a process may start before its network, or before the server's name.
TENSORHUB_DECL std::string await_host_towards_server(const worker_options& options) {
  static constexpr std::chrono::milliseconds look_interval{200};
  const auto last_look = detail::end_of(options.join_timeout) - look_interval;
  std::string own = host_towards_server(options);
  while (own.empty() && std::chrono::steady_clock::now() < last_look) {
    std::this_thread::sleep_for(look_interval);
    own = host_towards_server(options);
  }
  return own;
}

}  // namespace options_detail

TENSORHUB_DECL void unpublish_report::add(const unpublish_report& other) {
  finished += other.finished;
  moved += other.moved;
  cut_off += other.cut_off;
  forced = forced || other.forced;
  lost = lost || other.lost;
  if (changed.empty()) changed = other.changed;
  seconds = std::max(seconds, other.seconds);
}
TENSORHUB_DECL void update_report::add(const pull_progress& transfer) {
  bytes = transfer.bytes - transfer.unchanged_bytes;
  unchanged_bytes = transfer.unchanged_bytes;
  for (const source_progress& source : transfer.sources) {
    sources.push_back(source.name);
    paths.push_back(source.path);
    source_bytes.push_back(source.bytes);
  }
}

TENSORHUB_DECL std::size_t servers_of(const worker_options& options) {
  return detail::split_list(options_detail::servers_of_model(options)).size();
}

TENSORHUB_DECL void make_reachable(const worker_options& options, std::string& listen_host,
                                   std::string& advertised_host) {
  const auto refuse = [&](errc code, const std::string& why) {
    throw error(code,
                why + ": the reference server is '" + options.server +
                    "', which other machines may reach, and their readers need an address of this one: "
                    "set listen_host, or advertised_host; or, if all are on this machine, name the server "
                    "by 127.0.0.1",
                context_of(options));
  };
  const bool is_told = !advertised_host.empty();
  const bool listens = !listen_host.empty();
  if (options_detail::remote_servers(options).empty()) return;
  if (is_told && (listens || detail::is_local_host(advertised_host))) return;
  if (listens && !detail::is_local_host(listen_host)) return;
  if (listens && !detail::is_every_interface(listen_host))
    refuse(errc::invalid_argument,
           "the data port would be at '" + listen_host + "', which only this machine can use");
  std::string own = options_detail::await_host_towards_server(options);
  if (own.empty())
    throw error(errc::disconnected,
                "no route to the reference server at '" + options.server +
                    "' was found, or its name has no address here: check the address and the network",
                context_of(options));
  if (detail::is_local_host(own))
    refuse(errc::invalid_argument,
           "the reference server is reached from '" + own + "', which only this machine can use");
  (listens ? advertised_host : listen_host) = std::move(own);
}

TENSORHUB_DECL worker_options validated(worker_options options) {
  const auto refuse = [](std::string sentence) { throw error(errc::invalid_argument, sentence); };
  if (options.server.empty()) refuse("server is empty: give the reference server's address");
  if (options.model.empty()) refuse("model is empty: give the model's name");
  if (options.replica.empty()) refuse("replica is empty: give this replica's name");
  for (const std::string* name : {&options.model, &options.replica, &options.location.datacenter,
                                  &options.location.rack, &options.location.host, &options.location.device}) {
    if (name->size() > limits::name_bytes) throw error(errc::limit_exceeded, why_too_long(*name));
    if (!is_plain_text(*name))
      refuse("the name '" + escaped_text(*name) +
             "' has control characters, or is not UTF-8: choose plain text");
  }
  if (options.shard.count == 0 || options.shard.index >= options.shard.count) {
    refuse("shard " + to_string(options.shard) + " does not exist: the index must be below the count");
  }
  if (options.location.host.empty()) options.location.host = detail::machine_name();
  const std::size_t groups = detail::split_groups(options.server).size();
  choose_group(detail::group_of_model(options.model, groups), options.server, options.security);
  if (options.security) validate(*options.security, servers_of(options));
  options.log = queued(std::move(options.log));
  options.lanes = std::clamp<std::size_t>(options.lanes, 1, 64);
  options.window_chunks = std::min<std::size_t>(options.window_chunks, 1024);
  options.far_window_chunks = std::clamp<std::size_t>(options.far_window_chunks, 1, 1024);
  options.join_timeout = detail::bounded(options.join_timeout);
  options.drain_timeout = detail::bounded(options.drain_timeout);
  options.connect_timeout = detail::bounded(options.connect_timeout);
  detail::bound_intervals(options);
  return options;
}

TENSORHUB_DECL error_context context_of(const worker_options& options, version_number version) {
  error_context out;
  out.model = options.model;
  out.replica = options.replica;
  out.shard = options.shard.index;
  if (version) out.version = version.value;
  return out;
}
TENSORHUB_DECL worker_options beside(worker_options options, std::string_view role) {
  options.replica = name_in_role(options.replica, role);
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
