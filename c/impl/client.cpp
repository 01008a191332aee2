/// \file client.cpp
/// The functions of processes that are no workers: questions and their answers, orders.

#include <cstdint>
#include <memory>
#include <string>
#include <tensorhub/server_client.hpp>
#include <utility>
#include <vector>

#include "calls.hpp"

namespace tensorhub_c {

namespace {

[[nodiscard]] tensorhub::server_client_options client_options_of(const tensorhub_client_options& given) {
  tensorhub::server_client_options out;
  out.server = &required(given.server, "options.server");
  out.security = security_of(given);
  out.server_timeout = time_of(given.server_timeout_ms, out.server_timeout);
  return out;
}

}  // namespace

}  // namespace tensorhub_c

struct tensorhub_client final : tensorhub::server_client {
  explicit tensorhub_client(const tensorhub_client_options& given)
      : server_client{tensorhub_c::client_options_of(given)} {}
};

struct tensorhub_answer {
  std::vector<tensorhub::model_entry> models{};
  std::vector<std::vector<std::uint64_t>> available{};  ///< of each model, as numbers
  std::vector<tensorhub::stuck_entry> waiting{};
  std::string text{};
};

static_assert(TENSORHUB_STUCK_SILENT_WORKER == static_cast<int>(tensorhub::stuck_kind::silent_worker));

using namespace tensorhub_c;
namespace defaults = tensorhub::defaults;

namespace {

/// Makes an answer, and fills it by `ask(answer)`.
template <typename Ask>
tensorhub_status answered(tensorhub_answer** out, tensorhub_error** error, Ask&& ask) noexcept {
  return guarded(error, [&] {
    required(out, "answer") = nullptr;
    auto answer = std::make_unique<tensorhub_answer>();
    ask(*answer);
    *out = answer.release();
  });
}

template <typename Entry>
const Entry& at(const std::vector<Entry>& entries, std::size_t index, const char* what) {
  if (index < entries.size()) return entries[index];
  throw tensorhub_c::error(errc::invalid_argument, "there is no " + std::string{what} + " " +
                                                       std::to_string(index) + " in this answer, which has " +
                                                       std::to_string(entries.size()));
}

/// An order about a model's versions, given as `call(client, model, timeout)`.
template <typename Call>
tensorhub_status ordered(tensorhub_client* client, const char* model, std::int64_t timeout_ms,
                         tensorhub_error** error, Call&& call) noexcept {
  return guarded(error, [&] {
    call(required(client, "client"), std::string{&required(model, "model")},
         time_of(timeout_ms, defaults::join_timeout));
  });
}

}  // namespace

extern "C" {

tensorhub_status tensorhub_client_create(const tensorhub_client_options* options, tensorhub_client** client,
                                         tensorhub_error** error) {
  return guarded(error, [&] {
    required(client, "client") = nullptr;
    *client = new tensorhub_client{taken(options, "options")};
  });
}
void tensorhub_client_interrupt(tensorhub_client* client) {
  interrupt(client);
}
void tensorhub_client_free(tensorhub_client* client) {
  delete client;
}

tensorhub_status tensorhub_client_list(tensorhub_client* client, const char* model, int64_t timeout_ms,
                                       tensorhub_answer** answer, tensorhub_error** error) {
  return answered(answer, error, [&](tensorhub_answer& out) {
    out.models = required(client, "client").list(text_of(model), time_of(timeout_ms, defaults::join_timeout));
    for (const auto& entry : out.models) {
      auto& numbers = out.available.emplace_back();
      for (const tensorhub::version_number version : entry.available) numbers.push_back(version.value);
    }
  });
}
tensorhub_status tensorhub_client_why(tensorhub_client* client, const char* model, const char* replica,
                                      uint32_t shard, int64_t timeout_ms, tensorhub_answer** answer,
                                      tensorhub_error** error) {
  return answered(answer, error, [&](tensorhub_answer& out) {
    out.text = required(client, "client")
                   .why(&required(model, "model"), &required(replica, "replica"), shard,
                        time_of(timeout_ms, defaults::join_timeout));
  });
}
tensorhub_status tensorhub_client_stuck(tensorhub_client* client, const char* model, int64_t older_than_ms,
                                        int64_t timeout_ms, tensorhub_answer** answer,
                                        tensorhub_error** error) {
  return answered(answer, error, [&](tensorhub_answer& out) {
    out.waiting = required(client, "client")
                      .stuck(text_of(model), time_of(older_than_ms, std::chrono::seconds{1}),
                             time_of(timeout_ms, defaults::join_timeout))
                      .entries;
  });
}

size_t tensorhub_answer_count(const tensorhub_answer* answer) {
  return answer == nullptr ? 0 : answer->models.size() + answer->waiting.size();
}
const char* tensorhub_answer_text(const tensorhub_answer* answer) {
  return answer == nullptr ? "" : answer->text.c_str();
}
tensorhub_status tensorhub_answer_model(const tensorhub_answer* answer, size_t index,
                                        tensorhub_model_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto& known = at(required(answer, "answer").models, index, "model");
    reported(&required(report, "report"), [&] {
      tensorhub_model_report out{};
      out.name = known.name.c_str();
      out.shards = known.shards;
      out.bytes = known.bytes;
      out.latest = known.latest.value;
      out.available = answer->available[index].data();
      out.available_count = known.available.size();
      out.replica_count = known.replicas.size();
      return out;
    });
  });
}
tensorhub_status tensorhub_answer_replica(const tensorhub_answer* answer, size_t model, size_t index,
                                          tensorhub_replica_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto& of = at(required(answer, "answer").models, model, "model");
    const auto& known = at(of.replicas, index, "replica");
    reported(&required(report, "report"), [&] {
      tensorhub_replica_report out{};
      out.name = known.name.c_str();
      out.shards_joined = known.shards_joined;
      out.version = known.version.value;
      out.torn = known.torn ? 1 : 0;
      out.spot = known.spot ? 1 : 0;
      out.readers = known.readers;
      return out;
    });
  });
}
tensorhub_status tensorhub_answer_stuck(const tensorhub_answer* answer, size_t index,
                                        tensorhub_stuck_report* report, tensorhub_error** error) {
  return guarded(error, [&] {
    const auto& known = at(required(answer, "answer").waiting, index, "waiting worker");
    reported(&required(report, "report"), [&] {
      tensorhub_stuck_report out{};
      out.kind = static_cast<tensorhub_stuck_kind>(known.kind);
      out.model = known.model.c_str();
      out.replica = known.replica.c_str();
      out.shard = known.shard;
      out.version = known.version.value;
      out.waited_ms = known.waited_ms;
      out.peers = known.peers.c_str();
      out.advice = known.advice.c_str();
      return out;
    });
  });
}
void tensorhub_answer_free(tensorhub_answer* answer) {
  delete answer;
}

tensorhub_status tensorhub_client_retain(tensorhub_client* client, const char* model, uint32_t versions,
                                         int64_t timeout_ms, tensorhub_error** error) {
  return ordered(client, model, timeout_ms, error,
                 [&](auto& self, auto name, auto timeout) { self.retain(name, versions, timeout); });
}
tensorhub_status tensorhub_client_pin(tensorhub_client* client, const char* model, uint64_t version,
                                      int64_t timeout_ms, tensorhub_error** error) {
  return ordered(client, model, timeout_ms, error,
                 [&](auto& self, auto name, auto timeout) { self.pin(name, version, timeout); });
}
tensorhub_status tensorhub_client_release(tensorhub_client* client, const char* model, uint64_t version,
                                          int64_t timeout_ms, tensorhub_error** error) {
  return ordered(client, model, timeout_ms, error,
                 [&](auto& self, auto name, auto timeout) { self.release(name, version, timeout); });
}
tensorhub_status tensorhub_client_roll_back_to(tensorhub_client* client, const char* model, uint64_t version,
                                               int64_t timeout_ms, tensorhub_error** error) {
  return ordered(client, model, timeout_ms, error,
                 [&](auto& self, auto name, auto timeout) { self.roll_back_to(name, version, timeout); });
}

tensorhub_status tensorhub_client_evict(tensorhub_client* client, const char* model, const char* replica,
                                        int64_t timeout_ms, uint32_t* workers, tensorhub_error** error) {
  return guarded(error, [&] {
    const std::uint32_t there = required(client, "client")
                                    .evict(&required(model, "model"), &required(replica, "replica"),
                                           time_of(timeout_ms, defaults::join_timeout));
    if (workers != nullptr) *workers = there;
  });
}
tensorhub_status tensorhub_client_drain(tensorhub_client* client, const char* model, const char* replica,
                                        int64_t timeout_ms, uint32_t* workers, uint32_t* readers,
                                        tensorhub_error** error) {
  return guarded(error, [&] {
    const auto drained = required(client, "client")
                             .drain(&required(model, "model"), &required(replica, "replica"),
                                    time_of(timeout_ms, defaults::drain_timeout));
    if (workers != nullptr) *workers = drained.workers;
    if (readers != nullptr) *readers = drained.readers;
  });
}
tensorhub_status tensorhub_client_resume(tensorhub_client* client, const char* model, const char* replica,
                                         int64_t timeout_ms, tensorhub_error** error) {
  return guarded(error, [&] {
    required(client, "client")
        .resume(&required(model, "model"), &required(replica, "replica"),
                time_of(timeout_ms, defaults::join_timeout));
  });
}

}  // extern "C"
