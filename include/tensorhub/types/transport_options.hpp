#pragma once
/// \file transport_options.hpp
/// What a worker changes in a transport's options without knowing the transport: hosts, and the fixed port
/// where a process starts several transports of one kind.
///
/// Thread safety: functions of values.

#include <cstdint>
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

/// The same options without fixed ports.
template <typename Options>
[[nodiscard]] Options on_any_port(Options options) {
  visit_options(options, [](auto& each) {
    if constexpr (requires { each.listen_port = std::uint16_t{}; }) each.listen_port = 0;
  });
  return options;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
