#pragma once
/// \file operation.ipp
/// Definitions of operation.hpp.

#include "tensorhub/service/session/operation.hpp"
#include "tensorhub/transfer/first_of/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL bool known_sources::give_up(lease_id lease) {
  if (!lease || detail::contains(given_up, lease)) return false;
  given_up.push_back(lease);
  const auto found = detail::find(current, lease, &messages::assignment::lease);
  if (found == current.end()) return false;
  current.erase(found);
  return true;
}

TENSORHUB_DECL std::string running::source_names() const {
  std::string text;
  for (const messages::assignment& source : sources.current)
    text += (text.empty() ? "" : ", ") + source.source_replica + " at " +
            first_of_detail::readable_address(source.address.text);
  return text.empty() ? "no source (none is left)" : text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
