#pragma once
/// \file held_wait.ipp
/// What worker/held_wait.hpp declares.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/types/replica_name.hpp"
#include "tensorhub/worker/held_wait.hpp"
#include "tensorhub/worker/repeated.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

namespace held_wait_detail {

/// By replica: its part with the newest version; null: nobody has joined by that name.
using rows_by_replica = std::map<std::string, const replica_entry*, std::less<>>;

/// Of a part of a part, too.
[[nodiscard]] inline std::string name_of_whole(std::string_view name) {
  for (auto whole = whole_of(name); !whole.empty(); whole = whole_of(name)) name = whole;
  return std::string{name};
}

TENSORHUB_DECL rows_by_replica rows_of(const model_entry& model, const held_question& question) {
  rows_by_replica rows;
  const auto see = [](const replica_entry*& row, const replica_entry& next) {
    if (row == nullptr || next.version > row->version) row = &next;
  };
  if (question.names)
    for (const std::string& name : *question.names) rows.emplace(name, nullptr);
  for (const replica_entry& each : model.replicas) {
    if (is_copy(each.name)) continue;
    if (!question.names) {
      see(rows[name_of_whole(each.name)], each);
      continue;
    }
    for (std::string_view name = each.name; !name.empty(); name = whole_of(name))
      if (const auto asked = rows.find(name); asked != rows.end()) see(asked->second, each);
  }
  if (!question.names) rows.erase(name_of_whole(question.except));
  return rows;
}

[[nodiscard]] inline std::string what_it_has(const replica_entry* row, std::uint32_t shards) {
  if (row == nullptr) return "has not joined";
  if (row->torn) return "torn";
  if (row->shards_joined < shards)
    return std::to_string(row->shards_joined) + " of " + std::to_string(shards) + " shards have joined";
  return row->version ? "version " + to_string(row->version) : "no version";
}

/// "a, b, c and 5 more"
[[nodiscard]] inline std::string joined(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) out += (i > 0 ? ", " : "") + names[i];
  return names.size() > most ? out + " and " + std::to_string(names.size() - most) + " more" : out;
}

}  // namespace held_wait_detail

TENSORHUB_DECL version_holders holders_of(const model_entry& model, const held_question& question) {
  version_holders out;
  for (const auto& [name, row] : held_wait_detail::rows_of(model, question)) {
    if (row != nullptr && row->version >= question.version)
      out.holding.push_back(name);
    else
      out.lacking.push_back(name + " (" + held_wait_detail::what_it_has(row, model.shards) + ")");
  }
  out.are_enough = question.names ? out.lacking.empty() : out.holding.size() >= question.replicas;
  return out;
}

TENSORHUB_DECL held_wait::verdict held_wait::see(time_point now, std::chrono::steady_clock::duration took,
                                                 const model_entry& answer) {
  using std::chrono::milliseconds;
  static constexpr milliseconds shortest{10};
  static constexpr milliseconds usual_longest{200};
  static constexpr milliseconds longest{1000};
  answered_ = true;
  last_ = holders_of(answer, question_);
  latest_ = answer.latest;
  if (last_.are_enough) return verdict::held;
  interval_ = std::clamp(2 * interval_, shortest, usual_longest);
  pause_ = std::max(interval_, std::min(std::chrono::ceil<milliseconds>(10 * took), longest));

  const bool is_there =
      any_of(answer.available, [this](version_number each) { return each >= question_.version; });
  was_there_ = was_there_ || is_there || answer.latest >= question_.version;
  // Whoever reads may be about to hold it, after its last source has let go.
  const bool is_read = any_of(answer.replicas, [](const replica_entry& each) { return each.readers > 0; });
  if (!was_there_ || is_there || is_read) {
    gone_since_.reset();
    return verdict::ask_again;
  }
  if (!gone_since_) gone_since_ = now;
  return now - *gone_since_ >= patience ? verdict::gone : verdict::ask_again;
}

TENSORHUB_DECL std::string held_wait::state() const {
  if (!answered_) return "the server did not say who holds version " + to_string(question_.version);
  const std::size_t wanted =
      question_.names ? last_.holding.size() + last_.lacking.size() : question_.replicas;
  std::string out = std::to_string(last_.holding.size()) + " of " + std::to_string(wanted) +
                    " replicas hold version " + to_string(question_.version) + ", or a newer one";
  if (!last_.holding.empty()) out += ": " + held_wait_detail::joined(last_.holding);
  out += last_.lacking.empty() ? "; no other has joined"
                               : "; without it: " + held_wait_detail::joined(last_.lacking);
  if (gone_since_) {
    return out +
           "; it was taken back, lost or rolled back, and nobody who has it is left: publish another one";
  }
  if (!was_there_) {
    return out + "; it has not been published, or not in all shards" +
           (latest_ ? ": the latest version is " + to_string(latest_) : "");
  }
  return out + "; stuck() says what they wait for";
}

TENSORHUB_DECL std::vector<std::string> wait_held(held_question question, std::chrono::milliseconds timeout,
                                                  const held_wait_calls& calls) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  constexpr milliseconds last_question{20};  // the last one is asked so long before the deadline
  if (!question.version)
    throw calls.failure(errc::invalid_argument, "version 0 is held by nobody: versions count from 1");
  const auto until = end_of(timeout);
  held_wait wait{std::move(question)};
  for (;;) {
    const auto asked = steady_clock::now();
    std::vector<model_entry> answer;
    try {
      answer = calls.list(std::max(time_left(until), milliseconds{1}));
    } catch (const error& e) {
      if (e.code() != errc::timed_out || !wait.has_answer()) throw;
    }
    const auto now = steady_clock::now();
    if (!answer.empty()) {
      const auto verdict = wait.see(now, now - asked, answer.front());
      if (verdict == held_wait::verdict::held) return wait.holding();
      if (verdict == held_wait::verdict::gone) throw calls.failure(errc::unavailable, wait.state());
    }
    const milliseconds left = time_left(until);
    if (answer.empty() || left <= last_question) throw calls.failure(errc::timed_out, wait.state());
    sleep_until(now + std::min(wait.pause(), left - last_question), calls.is_interrupted);
    if (calls.is_interrupted()) throw calls.failure(errc::cancelled, "the call was interrupted");
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
