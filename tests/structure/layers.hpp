#pragma once
/// \file layers.hpp
/// The layer table as code: which header may include which.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "source_tree.hpp"

namespace structure {

/// Transport tls is transport tcp over another channel: the one transport that may include another's headers.
inline bool is_built_on(std::string_view group, std::string_view other) {
  return group == "transports/tls" && other == "transports/tcp";
}

/// What the compiled library of a transport has instantiated: the hubs over it. The only header of a
/// transport that includes higher layers.
inline bool is_list_of_instantiations(std::string_view path) {
  return path.starts_with("transports/") && path.ends_with("/compiled.hpp");
}

/// Place of a header in the table. Headers of one layer may include each other when they are of one `group`
/// (a folder; the few headers at the top of include/tensorhub/ are one group per layer).
struct layer_place {
  int layer = 0;
  std::string group;
};

inline constexpr int layer_testing = 100;    ///< above everything: nobody may include it
inline constexpr int layer_transport = 101;  ///< likewise; itself it may include layers 0 to 2
inline constexpr int layer_cuda = 9;         ///< a component of its own; it may include layers 0 to 3

/// The headers at the top are of one group with the folder of their layer.
inline std::string group_of_layer(int layer) {
  return layer == 4 ? "service" : layer == 5 ? "worker" : "";
}

/// The header to which a file of definitions belongs: "tensorhub/service/codec.hpp" for
/// "tensorhub/service/impl/codec.ipp". A header belongs to itself.
inline std::string header_of(std::string_view name) {
  std::string header{name};
  if (!header.ends_with(".ipp")) return header;
  header.replace(header.size() - 4, 4, ".hpp");
  if (const std::size_t at = header.rfind("/impl/"); at != std::string::npos) header.erase(at, 5);
  return header;
}

/// Of a file by the name it is included with ("tensorhub/types/ids.hpp"); empty: not in the table. A file of
/// definitions has its header's place.
inline std::optional<layer_place> place_of(std::string_view included_name) {
  const std::string header = header_of(included_name);
  std::string_view name = header;
  if (!name.starts_with("tensorhub/")) return std::nullopt;
  name.remove_prefix(10);
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) {
    static const std::map<std::string_view, int> top{
        {"version.hpp", 0},       {"config.hpp", 0},          {"error.hpp", 0},
        {"fwd.hpp", 0},           {"security.hpp", 4},        {"key_files.hpp", 4},
        {"server.hpp", 4},        {"options.hpp", 5},         {"process.hpp", 5},
        {"server_client.hpp", 5}, {"leave_on_signal.hpp", 5}, {"publisher.hpp", 5},
        {"seeder.hpp", 5},        {"subscriber.hpp", 5},      {"arena_publisher.hpp", 5},
        {"attached_copy.hpp", 5}, {"shared_copy.hpp", 5},     {"hub.hpp", 5},
        {"tensorhub.hpp", 6},     {"prometheus.hpp", 7},  // a component of its own
        {"torch.hpp", 7},                                 // likewise
        {"etcd.hpp", 8}};                                 // likewise
    const auto found = top.find(name);
    if (found == top.end()) return std::nullopt;
    return layer_place{found->second, group_of_layer(found->second)};
  }
  if (name.starts_with("impl/") && name.ends_with(".ipp")) {  // the definitions of a header at the top
    name.remove_prefix(5);
    name.remove_suffix(4);
    return place_of("tensorhub/" + std::string{name} + ".hpp");
  }
  if (name == "memory/cuda.hpp" || name.starts_with("memory/cuda/")) return layer_place{layer_cuda, "cuda"};
  const std::string_view folder = name.substr(0, slash);
  if (folder == "detail") return layer_place{0, ""};
  if (folder == "transports") {
    std::string_view library = name.substr(slash + 1);
    library = library.substr(0, library.find_first_of("/."));
    return layer_place{layer_transport, "transports/" + std::string{library}};
  }
  static const std::map<std::string_view, int> folders{
      {"types", 1},  {"concepts", 2}, {"policy", 3}, {"transfer", 3},
      {"memory", 3}, {"service", 4},  {"worker", 5}, {"testing", layer_testing},
      {"etcd", 7}};
  const auto found = folders.find(folder);
  if (found == folders.end()) return std::nullopt;
  return layer_place{found->second, std::string{folder}};
}

/// The name that a file of the library is included with: what follows the last include/ of its path.
inline std::string include_name(std::string_view path) {
  const std::size_t at = path.rfind("include/");
  return at == std::string_view::npos ? std::string{} : std::string{path.substr(at + 8)};
}

/// A header, or a file of definitions.
inline bool is_library_file(std::string_view path) {
  return (path.ends_with(".hpp") || path.ends_with(".ipp")) &&
         (path.starts_with("include/") ||
          (path.starts_with("transports/") && path.find("/include/tensorhub/") != std::string_view::npos));
}

/// Headers whose classes have members of zmq.hpp; every other header leaves that library to its .ipp file.
inline bool may_include_zmq_hpp(std::string_view name) {
  return name.ends_with(".ipp") || name == "tensorhub/service/zmq_socket.hpp" ||
         name == "tensorhub/service/handshake.hpp" || name == "tensorhub/service/curve_guard.hpp";
}

inline complaints check_layers(const source_file& file) {
  complaints found;
  const std::optional<layer_place> self = place_of(include_name(file.path));
  if (!self) return {file.path + " has no place in the layer table"};
  for (const include_line& include : includes_of(file.text)) {
    const std::string where = file.path + ":" + std::to_string(include.line) + " includes " + include.name;
    if (include.name.starts_with("tensorhub/")) {
      const std::optional<layer_place> other = place_of(include.name);
      if (!other) {
        found.push_back(where + ", which has no place in the layer table");
      } else if (self->layer == other->layer &&
                 (self->group == other->group || is_built_on(self->group, other->group))) {
        continue;
      } else if (self->layer == layer_transport && other->layer > 2 &&
                 !is_list_of_instantiations(file.path)) {
        found.push_back(where + ": a transport may include layers 0 to 2 and its own headers");
      } else if (self->layer == layer_cuda && other->layer > 3) {
        found.push_back(where + ": component cuda may include layers 0 to 3");
      } else if (self->layer == layer_testing && other->layer > 5) {
        found.push_back(where + ": testing may include layers 0 to 5");
      } else if (other->layer >= self->layer) {
        found.push_back(where + ": layer " + std::to_string(self->layer) + " may not include layer " +
                        std::to_string(other->layer));
      }
      continue;
    }
    const bool core = file.path.starts_with("include/") && self->layer != layer_cuda;
    if (core && starts_with_any(include.name, {"infiniband/", "rdma/", "cuda", "nccl", "ucp/", "ucs/"}))
      found.push_back(where + ": no core header includes a device's library");
    if (starts_with_any(include.name, {"prometheus/"}) && self->layer != 7)
      found.push_back(where + ": prometheus-cpp belongs to the component prometheus");
    if (starts_with_any(include.name, {"curl/", "nlohmann/"}) && self->layer != 7)
      found.push_back(where + ": libcurl and nlohmann-json belong to the component etcd");
    if (starts_with_any(include.name, {"ATen/", "c10/", "torch/"}) && self->layer != 7)
      found.push_back(where + ": libtorch belongs to the component torch");
    if (starts_with_any(include.name, {"openssl/"}) && self->group != "transports/tls")
      found.push_back(where + ": OpenSSL belongs to the transport tls");
    if (starts_with_any(include.name, {"zmq"}) && (self->layer < 4 || self->layer > 6))
      found.push_back(where + ": ZeroMQ belongs to the service, layer 4");
    else if (include.name == "zmq.hpp" && !may_include_zmq_hpp(include_name(file.path)))
      found.push_back(where + ": only the headers of sockets include zmq.hpp, others in their .ipp file");
    if (starts_with_any(include.name, {"cereal/"})) found.push_back(where + ": only the tests use cereal");
    if (starts_with_any(include.name, {"sodium.h", "xxh"}) && self->layer < 7 && !file.path.ends_with(".ipp"))
      found.push_back(where + ": libsodium and xxHash are included in .ipp files");
    if (core && starts_with_any(include.name, {"doctest", "gtest", "catch2"}))
      found.push_back(where + ": no header of ours includes a test framework");
    if (include.name.find('/') == std::string::npos && include.name.ends_with(".hpp") &&
        !starts_with_any(include.name, {"zmq"}))
      found.push_back(where + ": own headers are named from the root, \"tensorhub/...\"");
  }
  return found;
}

/// The state machines: no socket, no thread, no clock, not even through another header of ours.
inline bool is_pure(std::string_view name) {
  return starts_with_any(
      header_of(name),
      {"tensorhub/service/catalog", "tensorhub/service/session", "tensorhub/service/messages",
       "tensorhub/service/codec", "tensorhub/service/log.hpp", "tensorhub/transfer/pull.hpp",
       "tensorhub/transfer/control_block.hpp", "tensorhub/etcd/election.hpp", "tensorhub/etcd/gateway.hpp",
       "tensorhub/policy/scheduler/", "tensorhub/policy/consistency/"});
}

/// The include lines of every file of the library, by the name that it is included with.
using include_graph = std::map<std::string, std::vector<include_line>, std::less<>>;

inline include_graph includes_of_library(const std::vector<source_file>& files) {
  include_graph graph;
  for (const source_file& file : files) {
    if (is_library_file(file.path)) graph[include_name(file.path)] = includes_of(file.text);
  }
  return graph;
}

/// Calls `visit(file, include)` for every include line of a file and of all files of the library that it
/// includes.
template <typename Visit>
void for_each_include(const include_graph& graph, const std::string& name, const Visit& visit) {
  std::set<std::string, std::less<>> seen{name};
  std::vector<std::string> open{name};
  while (!open.empty()) {
    const std::string at = std::move(open.back());
    open.pop_back();
    const auto here = graph.find(at);
    if (here == graph.end()) continue;
    for (const include_line& include : here->second) {
      visit(at, include.name);
      if (seen.insert(include.name).second) open.push_back(include.name);
    }
  }
}

/// Follows the includes of every pure header through the whole tree.
inline complaints check_pure_headers(const std::vector<source_file>& files) {
  static const std::set<std::string, std::less<>> shells{
      "zmq.h",  "zmq.hpp",      "thread", "mutex",       "condition_variable",
      "future", "sys/socket.h", "poll.h", "sys/epoll.h", "unistd.h"};
  const include_graph graph = includes_of_library(files);
  complaints found;
  for (const auto& each : graph) {
    const std::string& name = each.first;
    if (!is_pure(name)) continue;
    for_each_include(graph, name, [&](const std::string& at, const std::string& included) {
      if (shells.contains(included)) found.push_back(name + " is pure, but " + at + " includes " + included);
    });
  }
  return found;
}

/// The core's umbrella reaches no other component and not the server, not even through other headers.
inline complaints check_umbrella(const std::vector<source_file>& files) {
  const include_graph graph = includes_of_library(files);
  const std::string umbrella = "tensorhub/tensorhub.hpp";
  complaints found;
  if (!graph.contains(umbrella)) found.push_back("there is no " + umbrella);
  for_each_include(graph, umbrella, [&](const std::string& at, const std::string& included) {
    if (starts_with_any(included, {"tensorhub/etcd", "tensorhub/prometheus", "tensorhub/memory/cuda",
                                   "tensorhub/testing", "tensorhub/torch", "tensorhub/transports",
                                   "tensorhub/server.hpp", "tensorhub/service/catalog"}))
      found.push_back(umbrella + " reaches what workers do not need: " + at + " includes " + included);
  });
  return found;
}

/// At depth one of include/tensorhub lies what a user may include, and nothing else.
inline complaints check_depth_one(const source_file& file) {
  static const std::set<std::string_view> for_users{"config.hpp",
                                                    "arena_publisher.hpp",
                                                    "attached_copy.hpp",
                                                    "error.hpp",
                                                    "etcd.hpp",
                                                    "fwd.hpp",
                                                    "hub.hpp",
                                                    "key_files.hpp",
                                                    "leave_on_signal.hpp",
                                                    "options.hpp",
                                                    "process.hpp",
                                                    "prometheus.hpp",
                                                    "server_client.hpp",
                                                    "publisher.hpp",
                                                    "security.hpp",
                                                    "seeder.hpp",
                                                    "server.hpp",
                                                    "shared_copy.hpp",
                                                    "subscriber.hpp",
                                                    "tensorhub.hpp",
                                                    "torch.hpp",
                                                    "version.hpp"};
  const std::string root = "include/tensorhub/";
  if (!file.path.starts_with(root)) return {};
  const std::string name = file.path.substr(root.size());
  if (name.find('/') != std::string::npos || for_users.contains(name)) return {};
  return {file.path + " is not in the list of headers that users include: put it into a folder"};
}

/// Examples show the public face. What a user includes is tensorhub.hpp, any header that it names,
/// server.hpp, types/ and transports.
inline complaints check_example(const source_file& file, const source_file& umbrella) {
  const std::vector<include_line> named = includes_of(umbrella.text);
  complaints found;
  for (const include_line& include : includes_of(file.text)) {
    if (!include.name.starts_with("tensorhub/")) continue;
    if (include.name == "tensorhub/tensorhub.hpp" || include.name == "tensorhub/server.hpp" ||
        include.name == "tensorhub/prometheus.hpp" || include.name == "tensorhub/etcd.hpp" ||
        include.name == "tensorhub/memory/cuda.hpp" || include.name == "tensorhub/torch.hpp")
      continue;
    if (starts_with_any(include.name, {"tensorhub/transports/", "tensorhub/types/"})) continue;
    // Who writes a policy of his own checks it.
    if (starts_with_any(include.name, {"tensorhub/testing/"}) && include.name.ends_with("_conformance.hpp"))
      continue;
    if (std::any_of(named.begin(), named.end(), [&](const auto& n) { return n.name == include.name; }))
      continue;
    found.push_back(file.path + ":" + std::to_string(include.line) + " includes " + include.name +
                    ": examples use what <tensorhub/tensorhub.hpp> names, server.hpp, types/, transports and "
                    "conformance suites");
  }
  return found;
}

}  // namespace structure
