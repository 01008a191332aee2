#pragma once
/// \file operation.ipp
/// Definitions of operation.hpp.

#include "tensorhub/service/session/operation.hpp"

namespace tensorhub::inline TENSORHUB_MODE::session_detail {

TENSORHUB_DECL std::string running::source_names() const {
  std::string text;
  for (const messages::assignment& source : sources)
    text += (text.empty() ? "" : ", ") + source.source_replica + " at " + source.address.text;
  return text.empty() ? "no source (none is left)" : text;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::session_detail
