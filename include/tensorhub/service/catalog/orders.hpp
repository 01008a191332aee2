#pragma once
/// \file orders.hpp
/// Orders of processes that are no workers (messages::manage_request, server_client.hpp): which versions are
/// retained or valid, and which replica is read from, or has its place.
///
/// Whoever gives an order is no member, so its answers are remembered here, the last few of all: a repeated
/// order is answered again, and not carried out again. Each order that is carried out is one line of the log,
/// with the name of the key that has given it.
///
/// A replica that is *set aside* is offered to nobody and relied upon for nothing. It stays so until it is
/// resumed, or all its workers are gone. An order about a replica is one about all its parts
/// (types/replica_name.hpp), also those that join later.

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/membership.hpp"
#include "tensorhub/service/catalog/reader_moves.hpp"
#include "tensorhub/service/catalog/retention.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/client_rules.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class orders {
 public:
  orders(core& core, versions& versions, retention& retention, reader_moves& moves, membership& membership)
      : core_{core}, versions_{versions}, retention_{retention}, moves_{moves}, membership_{membership} {}

  /// `rules`: of the key that gives the order.
  void on_manage(incarnation from, request_sequence sequence, const messages::manage_request& request,
                 const client_rules& rules) {
    const auto known = detail::find_if(
        answered_, [&](const answered& each) { return each.from == from && each.sequence == sequence; });
    if (known != answered_.end()) return core_.send(from, sequence, known->reply);
    const auto model = core_.models.find(request.model);
    // Workers of the model may be on their way to a new server: the order is repeated meanwhile.
    if (core_.recovering() && (model == core_.models.end() || is_too_early(model->second, request)))
      return core_.show_life(from);
    messages::manage_reply reply;
    if (model == core_.models.end())
      reply.result = {errc::not_found, "no worker of a model '" + request.model + "' has joined"};
    else
      reply = carry_out(model->second, request,
                        rules.name.empty() ? "an operator" : "the key '" + rules.name + "'");
    answered_.push_back({from, sequence, reply});
    if (answered_.size() > most_answers) answered_.pop_front();
    core_.send(from, sequence, std::move(reply));
  }

 private:
  static constexpr std::size_t most_answers = 256;

  struct answered {
    incarnation from{};
    request_sequence sequence{};
    messages::manage_reply reply{};
  };

  [[nodiscard]] bool is_too_early(model_state& model, const messages::manage_request& request) const {
    if (request.kind == messages::manage_kind::retention)
      return retention_.is_too_early(model, request.change);
    return workers_of(parts_of(model, request.replica)).empty();
  }
  [[nodiscard]] messages::manage_reply carry_out(model_state& model, const messages::manage_request& request,
                                                 const std::string& by) {
    messages::manage_reply reply;
    if (request.kind == messages::manage_kind::retention) {
      reply.result = retention_.change(model, nullptr, request.change, by);
      return reply;
    }
    const std::vector<replica_state*> parts = parts_of(model, request.replica);
    const std::vector<incarnation> workers = workers_of(parts);
    if (workers.empty()) {
      reply.result = {errc::not_found, "no worker of replica '" + request.replica + "' of model '" +
                                           request.model + "' has joined"};
      return reply;
    }
    reply.workers = static_cast<std::uint32_t>(workers.size());
    note(request, by);
    if (request.kind == messages::manage_kind::evict) {  // afterwards the model may be gone
      for (const incarnation each : workers) membership_.evict(each, by);
      return reply;
    }
    const bool aside = request.kind == messages::manage_kind::drain;
    for (replica_state* each : parts) set_aside(*each, aside ? request.replica : std::string{});
    for (const incarnation each : workers)
      reply.readers += static_cast<std::uint32_t>(core_.find(each)->as_source.readers.size());
    return reply;
  }

  void note(const messages::manage_request& request, const std::string& by) {
    std::string what = "evicted by " + by;
    if (request.kind == messages::manage_kind::drain) what = "drained by " + by + ": nobody is sent there";
    if (request.kind == messages::manage_kind::resume) what = "a source again, by order of " + by;
    core_.log(log_level::info,
              "replica '" + request.replica + "' of model '" + request.model + "' is " + what,
              {.model = request.model, .replica = request.replica});
  }

  [[nodiscard]] static std::vector<incarnation> workers_of(const std::vector<replica_state*>& replicas) {
    std::vector<incarnation> out;
    for (const replica_state* replica : replicas) {
      for (const worker_state* worker : replica->workers) {
        if (worker != nullptr) out.push_back(worker->id);
      }
    }
    return out;
  }

  /// `as`: the replica that the order names; empty: it is a source again.
  void set_aside(replica_state& replica, const std::string& as) {
    const bool was_aside = !replica.set_aside_as.empty();
    replica.set_aside_as = as;
    if (was_aside == as.empty()) versions_.recompute(replica);
    for (worker_state* worker : replica.workers) {
      if (worker != nullptr && !as.empty()) moves_.bar(*worker);
    }
    if (!as.empty()) moves_.bar_reserved(replica);
  }

  core& core_;
  versions& versions_;
  retention& retention_;
  reader_moves& moves_;
  membership& membership_;
  std::deque<answered> answered_;  ///< the oldest first
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
