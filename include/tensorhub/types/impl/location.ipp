#pragma once
/// \file location.ipp
/// The comparison of two locations: definitions of types/location.hpp.

#include "tensorhub/types/location.hpp"

#include <string_view>

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL locality locality_between(const location& a, const location& b) noexcept {
  if (a.datacenter != b.datacenter) return locality::other_datacenter;
  if (!a.host.empty() && a.host == b.host) return locality::same_host;
  if (!a.rack.empty() && a.rack == b.rack) return locality::same_rack;
  return locality::same_datacenter;
}

TENSORHUB_DECL std::string_view to_string(locality distance) noexcept {
  switch (distance) {
    case locality::same_host:
      return "same host";
    case locality::same_rack:
      return "same rack";
    case locality::same_datacenter:
      return "same datacenter";
    case locality::other_datacenter:
      return "other datacenter";
  }
  return "unknown";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
