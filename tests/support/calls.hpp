#pragma once
/// \file calls.hpp
/// How a call ends, and when something comes true: for the tests of any folder.

#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "tensorhub/error.hpp"

namespace calls {

/// The error that a call ends with; of code `ok` if it ends well.
template <typename Call>
[[nodiscard]] tensorhub::error error_of(Call&& call) {
  try {
    call();
  } catch (const tensorhub::error& e) {
    return e;
  }
  return tensorhub::error(tensorhub::errc::ok, "nothing was thrown");
}
/// Its code. `sentence` gets its words.
template <typename Call>
[[nodiscard]] tensorhub::errc code_of(Call&& call, std::string* sentence = nullptr) {
  const tensorhub::error ended = error_of(call);
  if (sentence != nullptr && ended.code() != tensorhub::errc::ok) *sentence = ended.what();
  return ended.code();
}

[[nodiscard]] inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Until `is_so`, or a deadline that nobody should need.
template <typename Condition>
[[nodiscard]] bool comes_true(Condition&& is_so) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds{60};
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{5});
  }
  return true;
}

}  // namespace calls
