#pragma once
/// \file version_number.ipp
/// Text forms of versions and selectors: definitions of types/version_number.hpp.

#include "tensorhub/types/version_number.hpp"

#include <string>

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string to_string(const version_selector& selector) {
  switch (selector.kind) {
    case version_selector::kind_type::latest:
      return "latest";
    case version_selector::kind_type::exactly:
      return "exactly " + to_string(selector.version);
    case version_selector::kind_type::at_least:
      return "at least " + to_string(selector.version);
  }
  return "unknown";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
