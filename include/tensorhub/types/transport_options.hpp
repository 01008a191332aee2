#pragma once
/// \file transport_options.hpp
/// What a worker changes in a transport's options without knowing the transport: hosts, the fixed port
/// where a process starts several transports of one kind, the device to be near, and the protection domain.
///
/// Thread safety: functions of values.

#include <cstdint>
#include <string>
#include <tuple>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Calls `visit` with a transport's options, with the options that they build on (`tcp`), with those that
/// they decorate (`inner`), and with those that they compose (`members`, a tuple).
template <typename Options, typename Visit>
void visit_options(Options& options, const Visit& visit) {
  visit(options);
  if constexpr (requires { options.tcp; }) visit_options(options.tcp, visit);
  if constexpr (requires { options.inner; }) visit_options(options.inner, visit);
  if constexpr (requires { std::tuple_size<decltype(options.members)>::value; })
    std::apply([&](auto&... each) { (visit_options(each, visit), ...); }, options.members);
}

/// A transport that cannot have this port is an error, and never one that is done without.
template <typename Options>
[[nodiscard]] bool has_fixed_port(const Options& options) {
  bool found = false;
  visit_options(options, [&found](const auto& each) {
    if constexpr (requires { each.listen_port; }) found = found || each.listen_port != 0;
  });
  return found;
}

/// The same options without fixed ports.
template <typename Options>
[[nodiscard]] Options on_any_port(Options options) {
  visit_options(options, [](auto& each) {
    if constexpr (requires { each.listen_port = std::uint16_t{}; }) each.listen_port = 0;
  });
  return options;
}

/// The same options with a PCI device for the network adapter to be near, where the user has named none, and
/// no fixed port, at which all workers of the process share one transport. `ask()` returns its address; it is
/// called for transports that have adapters.
template <typename Options, typename Ask>
[[nodiscard]] Options near_to(Options options, const Ask& ask) {
  visit_options(options, [&ask](auto& each) {
    if constexpr (requires { each.near_device = ask(); }) {
      if (each.near_device.empty() && !has_fixed_port(each)) each.near_device = ask();
    }
  });
  return options;
}

/// The same options with a protection domain for each model, where the user has named none and a fixed port
/// does not make the models of a process share one transport.
template <typename Options>
[[nodiscard]] Options in_domain_of(Options options, const std::string& model) {
  visit_options(options, [&model](auto& each) {
    if constexpr (requires { each.protection_domain = model; }) {
      if (each.protection_domain.empty() && each.listen_port == 0) each.protection_domain = model;
    }
  });
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
