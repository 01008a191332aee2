#pragma once
/// \file questions.hpp
/// Requests that change nothing: wait, list, describe.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class questions {
 public:
  explicit questions(core& core) : core_{core} {}

  void on(worker_state& worker, request_sequence sequence, const messages::wait_request& request) {
    waiter_state waiter{worker.id, sequence, request.selector,
                        core_.now + std::chrono::milliseconds{request.timeout_ms}};
    if (try_answer(*worker.model, waiter)) return;
    if (worker.model->waiters.count(worker.id) >= most_waits) {
      return core_.answer(worker, sequence,
                          messages::version_reply{
                              {errc::limit_exceeded, "this worker waits for " + std::to_string(most_waits) +
                                                         " versions already: wait for some of them first"},
                              {}});
    }
    waiter_count_ += worker.model->waiters.add(waiter) ? 1 : 0;
  }

  /// The answer has only the models that the asker's rules name. Of a model that is named it is whole: the
  /// asker may draw conclusions from a version that is not there.
  void on_list(incarnation from, request_sequence sequence, const messages::list_request& request,
               const client_rules& rules) {
    if (is_recovering(request.model) && put_off(from, sequence, request)) return;
    messages::list_reply reply;
    for (const auto& [name, model] : core_.models) {
      const bool is_asked = request.model.empty() ? rules.may_speak_of(name) : request.model == name;
      if (is_asked) reply.models.push_back(entry_of(model));
    }
    if (!request.model.empty() && reply.models.empty()) {
      if (put_off(from, sequence, request)) return;
      reply.result = {errc::not_found, "no worker of a model '" + request.model + "' has joined"};
    }
    core_.send(from, sequence, std::move(reply));
  }

  void on_describe(incarnation from, request_sequence sequence, const messages::describe_request& request) {
    messages::describe_reply reply;
    const auto model = core_.models.find(request.model);
    if (model == core_.models.end() || request.shard >= model->second.shards ||
        !model->second.layouts[request.shard]) {
      if (put_off(from, sequence, request)) return;
      reply.result = {errc::not_found, "the layout of model '" + request.model + "', shard " +
                                           std::to_string(request.shard) +
                                           ", is not known: no worker with it has joined"};
    } else {
      const layout& known = *model->second.layouts[request.shard];
      reply.shards = model->second.shards;
      reply.chunk_bytes = known.chunk_bytes();
      reply.tensors.assign(known.tensors().begin(), known.tensors().end());
    }
    core_.send(from, sequence, std::move(reply));
  }

  void on_why(incarnation from, request_sequence sequence, const messages::why_request& request) {
    messages::why_reply reply;
    const auto model = core_.models.find(request.model);
    const worker_state* worker = nullptr;
    if (model != core_.models.end() && request.shard < model->second.shards) {
      const auto replica = model->second.replicas.find(request.replica);
      if (replica != model->second.replicas.end()) worker = replica->second->workers[request.shard];
    }
    if (worker == nullptr) {
      if (put_off(from, sequence, request)) return;
      reply.result = {errc::not_found, "no worker of model '" + request.model + "' has joined as shard " +
                                           std::to_string(request.shard) + " of replica '" + request.replica +
                                           "'"};
    } else {
      for (const decision_state& decision : worker->as_reader.decisions)
        reply.decisions += core_.describe(worker, decision) + "\n";
      while (reply.decisions.size() > limits::text_bytes)  // the latest ones are those that are asked for
        reply.decisions.erase(0, reply.decisions.find('\n') + 1);
    }
    core_.send(from, sequence, std::move(reply));
  }

  /// Answers the workers whose version has become available.
  void retry(model_state& model) {
    waiter_count_ -=
        model.waiters.erase_if([&](const waiter_state& waiter) { return try_answer(model, waiter); });
  }
  /// Answers the workers whose deadline has passed.
  void expire(model_state& model) {
    waiter_count_ -= model.waiters.expire(
        core_.now, [&](const waiter_state& waiter) { static_cast<void>(try_answer(model, waiter)); });
  }
  /// Repeats the questions about models and workers that were unknown, unless they would be put off again.
  void retry_unknown() {
    const auto waits_on = [this](const question& each) {
      const auto* const list = std::get_if<messages::list_request>(&each.request);
      return list != nullptr && is_recovering(list->model);
    };
    const auto ready = std::stable_partition(put_off_.begin(), put_off_.end(), waits_on);
    const std::vector<question> again{std::make_move_iterator(ready),
                                      std::make_move_iterator(put_off_.end())};
    put_off_.erase(ready, put_off_.end());
    for (const question& each : again) {
      std::visit([&](const auto& request) { ask(each.from, each.sequence, request); }, each.request);
    }
  }

  /// The worker is being removed: forgets its questions.
  void forget(const worker_state& worker) { waiter_count_ -= worker.model->waiters.erase(worker.id); }
  /// The model is being removed, after all its workers: forgets the questions about it.
  void forget(model_state& model) { waiter_count_ -= model.waiters.size(); }
  [[nodiscard]] std::size_t waiter_count() const noexcept { return waiter_count_; }

 private:
  static constexpr std::size_t most_waits = limits::worker_requests_in_flight;

  struct question {
    incarnation from{};
    request_sequence sequence{};
    std::variant<messages::list_request, messages::describe_request, messages::why_request> request{};
  };
  static constexpr std::size_t put_off_at_most = 1024;

  [[nodiscard]] bool is_recovering(const std::string& name) const {
    const auto model = core_.models.find(name);
    return model != core_.models.end() && core_.recovering(model->second);
  }
  void ask(incarnation from, request_sequence sequence, const messages::list_request& request) {
    on_list(from, sequence, request, client_rules::everything());  // of one model, which it may ask about
  }
  void ask(incarnation from, request_sequence sequence, const messages::describe_request& request) {
    on_describe(from, sequence, request);
  }
  void ask(incarnation from, request_sequence sequence, const messages::why_request& request) {
    on_why(from, sequence, request);
  }
  /// True: the server has just started, and the workers in question may still join; the question is kept and
  /// repeated later, by its sender if there are too many.
  template <typename Request>
  [[nodiscard]] bool put_off(incarnation from, request_sequence sequence, const Request& request) {
    if (!core_.recovering()) return false;
    const bool known = detail::any_of(
        put_off_, [&](const question& each) { return each.from == from && each.sequence == sequence; });
    if (!known && put_off_.size() < put_off_at_most) put_off_.push_back({from, sequence, request});
    core_.show_life(from);
    return true;
  }

  /// True: the question was answered, or the asking worker is gone.
  [[nodiscard]] bool try_answer(model_state& model, const waiter_state& waiter) {
    worker_state* worker = core_.find(waiter.worker);
    if (worker == nullptr || worker->model != &model) return true;
    version_number best{};
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0 && accepts(waiter.selector, version)) best = version;
    }
    // Workers that are not back yet may have a newer one.
    const bool may_be_old =
        waiter.selector.kind == version_selector::kind_type::latest && core_.recovering(model);
    if (best && !(may_be_old && core_.now < waiter.deadline)) {
      core_.answer(*worker, waiter.sequence, messages::version_reply{{}, best.number()});
    } else if (core_.now >= waiter.deadline) {
      core_.answer(
          *worker, waiter.sequence,
          messages::version_reply{
              {errc::timed_out, "no version (" + to_string(waiter.selector) + ") of model '" + model.name +
                                    "' appeared; " + core_.what_there_is(model, waiter.selector)},
              {}});
    } else {
      return false;
    }
    return true;
  }

  [[nodiscard]] messages::model_entry entry_of(const model_state& model) const {
    messages::model_entry entry{model.name, model.shards, 0, model.latest_ever.number(), {}, {}};
    for (const auto& known : model.layouts) entry.bytes += known ? known->bytes() : 0;
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0) entry.available.push_back(version.number());
    }
    for (const auto& [name, replica] : model.replicas) {
      messages::replica_entry row{name, 0, replica->complete.number(), replica->torn, false, 0};
      for (const worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        ++row.shards_joined;
        row.spot = row.spot || worker->spot;
        row.readers += static_cast<std::uint32_t>(worker->as_source.readers.size());
      }
      if (row.shards_joined > 0) entry.replicas.push_back(std::move(row));
    }
    return entry;
  }

  core& core_;
  std::vector<question> put_off_;
  std::size_t waiter_count_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
