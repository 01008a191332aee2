#pragma once
/// \file envelope.hpp
/// Any control message (messages.hpp) as one value, with the header of its frame.
///
/// Thread safety: values, no shared state.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/one_of.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::messages {

/// The index of a type in this list is its number on the wire: append, never reorder.
using message =
    detail::one_of<join_request, join_reply, publish_request, unpublish_request, drained_reply,
                   update_request, update_reply, sources_request, lease_released_request, finish_request,
                   cut_off_done_request, wait_request, version_reply, list_request, list_reply,
                   describe_request, describe_reply, leave_request, heartbeat_request, heartbeat_reply,
                   status_reply, version_push, reassign_push, cut_off_push, abort_push, goodbye_push,
                   receiving_request, why_request, why_reply, stuck_request, stuck_reply, retain_request,
                   offload_failed_request, retention_push, offload_push, drop_push, holding_request,
                   committed_push, manage_request, manage_reply>;

/// The table of messages.hpp, for unevaluated calls: what each request is answered by.
template <typename Request>
status_reply answer_of(const Request&);
join_reply answer_of(const join_request&);
drained_reply answer_of(const unpublish_request&);
update_reply answer_of(const update_request&);
update_reply answer_of(const sources_request&);
version_reply answer_of(const wait_request&);
list_reply answer_of(const list_request&);
describe_reply answer_of(const describe_request&);
why_reply answer_of(const why_request&);
stuck_reply answer_of(const stuck_request&);
manage_reply answer_of(const manage_request&);
template <typename Request>
using answer_to = decltype(answer_of(std::declval<const Request&>()));

/// Whether an answer of this type fits the request.
[[nodiscard]] inline bool is_answer_to(const message& request, const message& answer) noexcept {
  return visit(
      [&]<typename Request>(const Request&) { return holds_alternative<answer_to<Request>>(answer); },
      request);
}
/// A request that the server answers to any process, and that changes nothing.
[[nodiscard]] inline bool is_question(const message& body) noexcept {
  return holds_any_of<list_request, describe_request, why_request, stuck_request>(body);
}

/// A message with its frame header.
struct envelope {
  std::uint64_t sender = 0;     ///< a worker's incarnation, or the server's epoch
  request_sequence sequence{};  ///< number of the request; zero for heartbeats and pushes
  /// Worker -> server: no request up to this number waits for its answer, but those in `open`. The others are
  /// never executed again, and their answers may be forgotten.
  request_sequence acknowledged{};
  message body{};
  /// In ascending order; at most limits::worker_requests_in_flight.
  std::vector<request_sequence> open{};
  /// Server -> worker: whose message it is, since several workers may share a connection; zero: everybody's
  /// there.
  std::uint64_t recipient = 0;
};

/// By which a worker's own shell ends its session, or that of `recipient` among several (zero: all).
[[nodiscard]] inline envelope goodbye_of_shell(status reason, std::uint64_t recipient = 0) {
  return {.body = goodbye_push{.reason = std::move(reason)}, .recipient = recipient};
}

/// What the envelopes of a worker say of its requests, in whatever order they arrive.
class closed_requests {
 public:
  void learn(const envelope& said) {
    const auto is_open_there = [&](request_sequence sequence) {
      return sequence > said.acknowledged || std::binary_search(said.open.begin(), said.open.end(), sequence);
    };
    std::erase_if(open_, [&](request_sequence sequence) { return !is_open_there(sequence); });
    for (const request_sequence sequence : said.open) {
      if (sequence > all_up_to_ && sequence <= said.acknowledged) open_.push_back(sequence);
    }
    all_up_to_ = std::max(all_up_to_, said.acknowledged);
  }
  [[nodiscard]] bool contains(request_sequence sequence) const noexcept {
    return sequence <= all_up_to_ && !std::binary_search(open_.begin(), open_.end(), sequence);
  }

 private:
  request_sequence all_up_to_{};
  std::vector<request_sequence> open_{};  ///< up to `all_up_to_`, in ascending order
};

}  // namespace tensorhub::inline TENSORHUB_MODE::messages
