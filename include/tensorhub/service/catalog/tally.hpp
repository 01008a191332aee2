#pragma once
/// \file tally.hpp
/// Counts the messages that pass through the catalog: requests, answers and pushes.
///
/// Decisions are counted when their messages pass, so that the parts of the catalog need not do it. Events
/// without a message (a death, a cut-off) are counted by the parts themselves, in `seen`.
///
/// An update counts once per shard, at its first end: the answer that refuses it or keeps the held version,
/// the worker's report of a failure, or the answer to the worker's report of success (which waits for the
/// group). An update that an earlier server decided is not counted.

#include <utility>
#include <variant>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog/state.hpp"
#include "tensorhub/service/statistics.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class tally {
 public:
  catalog_statistics seen{};

  /// Counts a new request (not a repetition), before any decision on it.
  void asked(worker_state& worker, answer_state& slot, const messages::message& body) {
    if (holds_alternative<messages::update_request>(body)) {
      slot.kind = request_kind::update;
      worker.progress.updating = true;
    } else if (const auto* finish = get_if<messages::finish_request>(&body)) {
      slot.kind = finish->result.ok() ? request_kind::finish : request_kind::other;
      if (!finish->result.ok()) end_update(worker, finish->result.code);
    } else if (holds_alternative<messages::unpublish_request>(body)) {
      slot.kind = request_kind::drain;
    } else if (holds_alternative<messages::publish_request>(body)) {
      slot.kind = request_kind::publish;
    } else if (const auto* sources = get_if<messages::sources_request>(&body)) {
      count(*sources);
    } else if (const auto* cut = get_if<messages::cut_off_done_request>(&body)) {
      if (!cut->reader && !worker.as_source.readers.empty()) ++seen.drains_forced;
    }
  }

  void answered(worker_state& worker, const answer_state& slot, const messages::message& body,
                time_point now) {
    if (const auto* update = get_if<messages::update_reply>(&body)) {
      for (const messages::assignment& source : update->sources) count(source);
      if (slot.kind != request_kind::update) return;
      seen.update_wait.add(now - slot.asked);
      if (!update->result.ok() || update->keep) end_update(worker, update->result.code, update->keep);
    } else if (const auto* drained = get_if<messages::drained_reply>(&body)) {
      if (slot.kind != request_kind::drain || !drained->result.ok()) return;
      seen.drain.add(now - slot.asked);
    } else if (const auto* status = get_if<messages::status_reply>(&body)) {
      if (slot.kind == request_kind::finish) end_update(worker, status->result.code);
      if (slot.kind == request_kind::publish) seen.publishes.add(status->result.code);
    }
  }

  void pushed(const messages::message& body) {
    const auto* push = get_if<messages::reassign_push>(&body);
    if (push != nullptr && push->source.lease) count(push->source);
  }

 private:
  void count(const messages::sources_request& request) {
    switch (request.why) {
      case messages::sources_wanted::one_failed:  // counted when it is known to be the reader's
        return;
      case messages::sources_wanted::all_stalled:
        ++seen.stalls;
        return;
      case messages::sources_wanted::short_of_chunks:
        ++seen.shortages.reported;
    }
  }
  void count(const messages::assignment& source) {
    ++seen.assignments;
    if (source.crossing) ++seen.crossings;
  }
  void end_update(worker_state& worker, errc code, bool kept = false) {
    if (!std::exchange(worker.progress.updating, false)) return;
    seen.updates.add(code);
    if (kept) ++seen.updates_kept;
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
