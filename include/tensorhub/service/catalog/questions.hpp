#pragma once
/// \file questions.hpp
/// Requests that change nothing: wait, list, describe.

#include <chrono>
#include <string>
#include <utility>

#include "tensorhub/service/catalog/core.hpp"

namespace tensorhub::catalog_detail {

class questions {
 public:
  explicit questions(core& shared) : core_{shared} {}

  void on(worker_state& worker, request_sequence sequence, const messages::wait_request& request) {
    waiter_state waiter{worker.id, sequence, request.selector,
                        core_.now + std::chrono::milliseconds{request.timeout_ms}};
    if (try_answer(*worker.model, waiter)) return;
    worker.model->waiters.push_back(waiter);
    ++waiter_count_;
  }

  void on_list(incarnation from, request_sequence sequence, const messages::list_request& request) {
    messages::list_reply reply;
    for (const auto& [name, model] : core_.models) {
      if (request.model.empty() || request.model == name) reply.models.push_back(entry_of(model));
    }
    if (!request.model.empty() && reply.models.empty()) {
      reply.result = {errc::not_found, "no worker of a model '" + request.model + "' has joined"};
    }
    core_.send(from, sequence, std::move(reply));
  }

  void on_describe(incarnation from, request_sequence sequence, const messages::describe_request& request) {
    messages::describe_reply reply;
    const auto model = core_.models.find(request.model);
    if (model == core_.models.end() || request.shard >= model->second.shards ||
        !model->second.layouts[request.shard]) {
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

  /// Answers those whose version has come.
  void retry(model_state& model) {
    for (std::size_t i = 0; i < model.waiters.size();) {
      if (try_answer(model, model.waiters[i])) {
        model.waiters[i] = model.waiters.back();
        model.waiters.pop_back();
        --waiter_count_;
      } else {
        ++i;
      }
    }
  }
  /// Answers those whose deadline has come.
  void expire(model_state& model) {
    for (std::size_t i = 0; i < model.waiters.size();) {
      if (core_.now >= model.waiters[i].deadline && try_answer(model, model.waiters[i])) {
        model.waiters[i] = model.waiters.back();
        model.waiters.pop_back();
        --waiter_count_;
      } else {
        ++i;
      }
    }
  }
  /// The model goes away, and all its workers have.
  void forget(model_state& model) { waiter_count_ -= model.waiters.size(); }
  [[nodiscard]] std::size_t waiter_count() const noexcept { return waiter_count_; }

 private:
  /// True: answered, or the asker is gone.
  [[nodiscard]] bool try_answer(model_state& model, const waiter_state& waiter) {
    worker_state* worker = core_.find(waiter.worker);
    if (worker == nullptr || worker->model != &model) return true;
    version_number best{};
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0 && accepts(waiter.selector, version)) best = version;
    }
    if (best) {
      core_.answer(*worker, waiter.sequence, messages::version_reply{{}, best});
    } else if (core_.now >= waiter.deadline) {
      core_.answer(
          *worker, waiter.sequence,
          messages::version_reply{
              {errc::timed_out, "no version (" + to_string(waiter.selector) + ") of model '" + model.name +
                                    "' appeared; the latest was " + to_string(model.latest_ever)},
              {}});
    } else {
      return false;
    }
    return true;
  }

  [[nodiscard]] messages::model_entry entry_of(const model_state& model) const {
    messages::model_entry entry{model.name, model.shards, 0, model.latest_ever, {}, {}};
    for (const auto& known : model.layouts) entry.bytes += known ? known->bytes() : 0;
    for (const auto& [version, state] : model.versions) {
      if (state.complete_replicas > 0) entry.available.push_back(version);
    }
    for (const auto& [name, replica] : model.replicas) {
      messages::replica_entry row{name, 0, replica->complete, replica->torn, false, 0};
      for (const worker_state* worker : replica->workers) {
        if (worker == nullptr) continue;
        ++row.shards_joined;
        row.spot = row.spot || worker->spot;
        row.readers += static_cast<std::uint32_t>(worker->readers.size());
      }
      if (row.shards_joined > 0) entry.replicas.push_back(std::move(row));
    }
    return entry;
  }

  core& core_;
  std::size_t waiter_count_ = 0;
};

}  // namespace tensorhub::catalog_detail
