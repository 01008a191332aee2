#pragma once
/// \file questions.hpp
/// The calls of a worker that move no weights: what it asks the server, and what it asks the server to
/// retain.
///
/// Each is one request and its answer, and ends at its time-out at the latest.
///
/// Thread safety: as `worker`, whose base this is: any thread, also while an update runs.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/service/session.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// `Worker` derives from this and gives it `ask`, `failure` and `ensure_joined_idle` (as a friend).
template <typename Worker>
class worker_questions {
 public:
  /// What the server knows of a model (empty: of all models). Works without any tensor.
  [[nodiscard]] std::vector<messages::model_entry> list(
      std::string model = {}, std::chrono::milliseconds timeout = defaults::join_timeout) {
    if (model.size() > limits::name_bytes)
      throw derived().failure(errc::limit_exceeded,
                              "no model has a name of more than 512 bytes: " + model.substr(0, 64));
    return derived()
        .ask(timeout, [&](session& core, time_point now,
                          time_point until) { return core.list(now, std::move(model), until); })
        .list.models;
  }

  /// The tensors of a shard of this worker's model, as its first worker announced them. Works without any
  /// tensor.
  [[nodiscard]] messages::describe_reply describe_model(
      std::uint32_t shard, std::chrono::milliseconds timeout = defaults::join_timeout) {
    return derived()
        .ask(timeout, [&](session& core, time_point now,
                          time_point until) { return core.describe(now, shard, until); })
        .description;
  }

  /// How the server has chosen this worker's sources: a line per decision (candidates, cost, choice), the
  /// latest last.
  [[nodiscard]] std::string why(std::chrono::milliseconds timeout = defaults::join_timeout) {
    return derived()
        .ask(timeout, [](session& core, time_point now, time_point until) { return core.why(now, until); })
        .why;
  }

  /// What in this model is waiting for what, and for longer than `older_than`; the oldest first.
  [[nodiscard]] messages::stuck_reply stuck(std::chrono::milliseconds older_than = std::chrono::seconds{1},
                                            std::chrono::milliseconds timeout = defaults::join_timeout) {
    return derived()
        .ask(timeout,
             [&](session& core, time_point now, time_point until) {
               return core.stuck(now, derived().options_.model, older_than, until);
             })
        .stuck;
  }

  /// Of this model the latest `versions` are not to be lost (and those that are pinned): whoever is the last
  /// reliable holder of one hands it over, to the host memory of some process, before it lets go.
  void retain(std::uint32_t versions, std::chrono::milliseconds timeout = defaults::join_timeout) {
    change_retention({versions, {}, {}}, timeout);
  }
  /// The same for one version, until it is released. It should be published still, or retained already.
  void pin(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout) {
    change_retention({{}, version, {}}, timeout);
  }
  void release(version_number version, std::chrono::milliseconds timeout = defaults::join_timeout) {
    change_retention({{}, {}, version}, timeout);
  }

 private:
  friend Worker;
  worker_questions() = default;

  void change_retention(const messages::retain_request& change, std::chrono::milliseconds timeout) {
    derived().ensure_joined_idle();
    derived().ask(timeout, [&](session& core, time_point now, time_point until) {
      return core.retain(now, change, until);
    });
  }
  [[nodiscard]] Worker& derived() noexcept { return static_cast<Worker&>(*this); }
};

}  // namespace tensorhub::inline TENSORHUB_MODE
