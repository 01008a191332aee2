#pragma once
/// \file held_wait.hpp
/// The wait until replicas hold a version: `wait_held` of publishers and of `server_client`. It asks for the
/// server's list again and again, more rarely the longer it waits and the longer an answer takes.
///
/// Thread safety: `held_wait` has none. `wait_held` may be called from several threads if its `calls` may.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/server_reports.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// Who is to hold what. A replica holds what one of its parts holds (types/replica_name.hpp). Copies of
/// retained versions do not count as parts.
struct held_question {
  version_number version{};    ///< or a newer one
  std::uint32_t replicas = 0;  ///< how many, whoever they are, beside `except`
  std::string except{};
  std::optional<std::vector<std::string>> names{};  ///< instead of a number: all of these
};

/// What one answer of the server says to it.
struct version_holders {
  std::vector<std::string> holding{};  ///< the replicas that count, by name
  std::vector<std::string> lacking{};  ///< the others, and what they have: "rollout-3 (version 6)"
  bool are_enough = false;
};
[[nodiscard]] version_holders holders_of(const model_entry& model, const held_question& question);

/// One such wait, without a clock: answers go in, and it says what to do.
class held_wait {
 public:
  using time_point = std::chrono::steady_clock::time_point;
  enum class verdict : std::uint8_t {
    ask_again,
    held,
    gone,  ///< it was there, and nobody can have it any more
  };
  /// What has been gone for this long does not come back. (A server that has just begun knows of no holder
  /// that has not joined it yet.)
  static constexpr std::chrono::milliseconds patience = defaults::recovery_grace;

  explicit held_wait(held_question question) : question_{std::move(question)} {}

  /// An answer has come, `took` after its question.
  [[nodiscard]] TENSORHUB_DECL verdict see(time_point now, std::chrono::steady_clock::duration took,
                                           const model_entry& answer);
  /// How long to wait before the next question: ten times as long as the last one took, up to a second, so
  /// that waiting callers do not keep a slow server busy; and 10 ms at least.
  [[nodiscard]] std::chrono::milliseconds pause() const noexcept { return pause_; }

  [[nodiscard]] bool has_answer() const noexcept { return answered_; }
  /// By the last answer.
  [[nodiscard]] const std::vector<std::string>& holding() const noexcept { return last_.holding; }
  /// By the last answer: how many replicas hold it, which do, and which do not.
  [[nodiscard]] TENSORHUB_DECL std::string state() const;

 private:
  held_question question_;
  version_holders last_{};
  version_number latest_{};  ///< of the model, by the last answer
  bool answered_ = false;
  bool was_there_ = false;                  ///< the version, or a newer one, has been complete somewhere
  std::optional<time_point> gone_since_{};  ///< nobody holds it or reads anything
  std::chrono::milliseconds interval_{0};
  std::chrono::milliseconds pause_{0};
};

/// What the door that waits does. `list`: of its model, within the given time. `is_interrupted`: since the
/// call began.
struct held_wait_calls {
  std::function<std::vector<model_entry>(std::chrono::milliseconds)> list;
  std::function<bool()> is_interrupted;
  std::function<error(errc, const std::string&)> failure;
};

/// Waits, and returns the names of the replicas that hold it.
[[nodiscard]] std::vector<std::string> wait_held(held_question question, std::chrono::milliseconds timeout,
                                                 const held_wait_calls& calls);

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/held_wait.ipp"
#endif
