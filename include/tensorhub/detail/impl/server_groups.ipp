#pragma once
/// \file server_groups.ipp
/// Definitions of detail/server_groups.hpp.

#include "tensorhub/detail/server_groups.hpp"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::vector<std::string> split_groups(const std::string& list) {
  std::vector<std::string> out(1);
  for (const char each : list) {
    if (each == '|')
      out.emplace_back();
    else
      out.back() += each;
  }
  return out;
}

TENSORHUB_DECL std::size_t group_of_model(std::string_view model, std::size_t groups) noexcept {
  std::uint64_t name = 0xcbf29ce484222325u;  // FNV-1a
  for (const char each : model) name = (name ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
  std::size_t best = 0;
  std::uint64_t most = 0;
  for (std::size_t group = 0; group < groups; ++group) {
    std::uint64_t weight = name + (group + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
    weight = (weight ^ weight >> 30) * 0xbf58476d1ce4e5b9u;
    weight = (weight ^ weight >> 27) * 0x94d049bb133111ebu;
    weight ^= weight >> 31;
    if (weight < most) continue;
    most = weight;
    best = group;
  }
  return best;
}

TENSORHUB_DECL bool is_server_address(std::string_view address, unsigned lowest) noexcept {
  constexpr std::string_view scheme = "tcp://";
  if (!address.starts_with(scheme)) return address.find("://") != address.npos;
  address.remove_prefix(scheme.size());
  const auto colon = address.rfind(':');
  if (colon == address.npos) return false;
  const std::string_view digits = address.substr(colon + 1);
  unsigned port = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return failure == std::errc{} && end == digits.data() + digits.size() && port >= lowest && port <= 65535;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
