#pragma once
/// \file listen_port.hpp
/// Ports that transports listen on, for a process that starts several transports of one kind.
///
/// Thread safety: functions of values.

#include <cstdint>
#include <tuple>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Replaces every fixed port in a transport's options by `change(port)`; zero (any free port) stays. The
/// ports are a member `listen_port` of the options, of the options that they build on (`tcp`), of the options
/// that they decorate (`inner`), and of the options that they compose (`members`, a tuple).
template <typename Options, typename Change>
void change_listen_ports(Options& options, const Change& change) {
  if constexpr (requires { options.listen_port = std::uint16_t{}; }) {
    if (options.listen_port != 0) options.listen_port = change(options.listen_port);
  }
  if constexpr (requires { options.tcp; }) change_listen_ports(options.tcp, change);
  if constexpr (requires { options.inner; }) change_listen_ports(options.inner, change);
  if constexpr (requires { std::tuple_size<decltype(options.members)>::value; })
    std::apply([&](auto&... each) { (change_listen_ports(each, change), ...); }, options.members);
}

/// The same options with `offset` added to each fixed port.
template <typename Options>
[[nodiscard]] Options on_port_after(Options options, std::uint16_t offset) {
  change_listen_ports(options,
                      [offset](std::uint16_t port) { return static_cast<std::uint16_t>(port + offset); });
  return options;
}

/// The same options without fixed ports.
template <typename Options>
[[nodiscard]] Options on_any_port(Options options) {
  change_listen_ports(options, [](std::uint16_t) { return std::uint16_t{0}; });
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
