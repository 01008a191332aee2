#pragma once
/// \file error.ipp
/// The names of codes and the text of an error with its context: definitions of error.hpp.

#include "tensorhub/error.hpp"

#include <string>
#include <string_view>
#include <utility>

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL bool retryable(errc code) noexcept {
  switch (code) {
    case errc::unavailable:
    case errc::timed_out:
    case errc::busy:
    case errc::torn:
    case errc::group_failed:
    case errc::contract_broken:
    case errc::corrupt:
    case errc::source_lost:
    case errc::disconnected:
      return true;
    default:
      return false;
  }
}

TENSORHUB_DECL std::string_view to_string(errc code) noexcept {
  switch (code) {
    case errc::ok:
      return "ok";
    case errc::invalid_argument:
      return "invalid_argument";
    case errc::limit_exceeded:
      return "limit_exceeded";
    case errc::layout_mismatch:
      return "layout_mismatch";
    case errc::policy_mismatch:
      return "policy_mismatch";
    case errc::protocol_mismatch:
      return "protocol_mismatch";
    case errc::version_conflict:
      return "version_conflict";
    case errc::not_found:
      return "not_found";
    case errc::unavailable:
      return "unavailable";
    case errc::timed_out:
      return "timed_out";
    case errc::busy:
      return "busy";
    case errc::torn:
      return "torn";
    case errc::group_failed:
      return "group_failed";
    case errc::contract_broken:
      return "contract_broken";
    case errc::corrupt:
      return "corrupt";
    case errc::source_lost:
      return "source_lost";
    case errc::disconnected:
      return "disconnected";
    case errc::replaced:
      return "replaced";
    case errc::cancelled:
      return "cancelled";
    case errc::transport_failed:
      return "transport_failed";
    case errc::system_failed:
      return "system_failed";
    case errc::refused:
      return "refused";
    case errc::still_published:
      return "still_published";
  }
  return "unknown";
}

namespace error_detail {

[[nodiscard]] inline std::string error_text(errc code, std::string_view sentence,
                                            const error_context& context) {
  std::string text{sentence};
  text += " [";
  text += to_string(code);
  const auto add = [&text](std::string_view word, const std::string& value) {
    if (!value.empty()) text.append(text.back() == ';' ? " " : "; ").append(word).append(" ").append(value);
  };
  add("model", context.model);
  add("version", context.version ? std::to_string(*context.version) : std::string{});
  add("replica", context.replica);
  add("shard", context.shard ? std::to_string(*context.shard) : std::string{});
  add("peer", context.peer);
  add("chunk", context.chunk ? std::to_string(*context.chunk) : std::string{});
  text += "]";
  return text;
}

}  // namespace error_detail

TENSORHUB_DECL bool error::retryable() const noexcept {
  return tensorhub::retryable(code_);
}

TENSORHUB_DECL error::error(errc code, std::string_view sentence, error_context context)
    : std::runtime_error(error_detail::error_text(code, sentence, context)),
      code_{code},
      sentence_{sentence},
      context_{std::move(context)} {}

}  // namespace tensorhub::inline TENSORHUB_MODE
