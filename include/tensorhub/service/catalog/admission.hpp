#pragma once
/// \file admission.hpp
/// Decides whether a worker may join: checks its shard, its policies and its layout. The user of a refused
/// worker reads the sentence of the refusal.
///
/// A layout is large, and after the start of a server thousands of workers join that all know it. The server
/// asks a few of them, and the joins of the others wait until one has told it.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/types/client_rules.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/plain_text.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// A join that waits until the server has learnt the layout.
struct waiting_join {
  messages::envelope said{};
  client_identity client{};
  std::size_t bytes = 0;  ///< about what it takes here
};

class admission {
 public:
  /// `consistency`: name of the server's policy; borrowed, must be static text.
  admission(core& core, std::string_view consistency) : core_{core}, consistency_{consistency} {}

  [[nodiscard]] messages::status check_join(incarnation from, const messages::join_request& join) const {
    const auto refuse = [](errc code, std::string sentence) {
      return messages::status{code, std::move(sentence)};
    };
    if (join.model.empty() || join.replica.empty()) {
      return refuse(errc::invalid_argument, "a worker needs the name of a model and of a replica");
    }
    if (auto bad = check_names(join); !bad.ok()) return bad;
    if (join.shard.count == 0 || join.shard.count > limits::shards || join.shard.index >= join.shard.count) {
      return refuse(errc::invalid_argument,
                    "shard " + to_string(join.shard) + " does not exist: the index must be below the count");
    }
    if (join.form.consistency != consistency_) {
      return refuse(errc::policy_mismatch, "this worker uses the consistency policy '" +
                                               join.form.consistency + "', the server uses '" +
                                               std::string{consistency_} +
                                               "': build both with the same hub type");
    }
    const auto differs = [](const std::string& wanted, const std::string& given) {
      return !wanted.empty() && wanted != given;
    };
    if (differs(core_.options.transport, join.form.transport)) {
      return refuse(errc::policy_mismatch, "this worker uses the transport '" + join.form.transport +
                                               "', the server asks for '" + core_.options.transport + "'");
    }
    if (differs(core_.options.integrity, join.form.integrity)) {
      return refuse(errc::policy_mismatch, "this worker uses the integrity policy '" + join.form.integrity +
                                               "', the server asks for '" + core_.options.integrity + "'");
    }
    return check_bounds(from, join);
  }

  /// The worker has what the model's other workers have. Sets `wants_layout` if the decision needs the
  /// tensors and they were not sent.
  [[nodiscard]] messages::status check_form(const messages::join_request& join, bool& wants_layout) {
    if (auto misfit = check_policies(join); !misfit.ok()) return misfit;
    return check_layout(join, wants_layout);
  }

  /// The join has tensors, and they make the layout that it names.
  [[nodiscard]] static bool has_its_layout(const messages::join_request& join) {
    try {
      return !join.form.tensors.empty() && layout_of(join).chunk_count() == join.form.chunk_count;
    } catch (const error&) {
      return false;
    }
  }

  // ---- the search for an unknown layout

  struct asked_worker {
    incarnation from{};
    request_sequence sequence{};  ///< of its join
  };
  /// Which worker is asked for the layout that this join lacks; empty: enough were asked lately, and the join
  /// waits for their answers.
  [[nodiscard]] std::optional<asked_worker> whom_to_ask(const messages::envelope& said,
                                                        const messages::join_request& join,
                                                        const client_identity& client) {
    const asked_worker sender{incarnation{said.sender}, said.sequence};
    const auto model = core_.models.find(join.model);
    const bool is_known = model != core_.models.end() && model->second.layouts[join.shard.index].has_value();
    if (is_known) return sender;  // its own layout differs: its user is told where
    if (searches_.size() >= most_searches) forget_silent_searches();
    const shard_name which{join.model, join.shard.index};
    if (searches_.size() >= most_searches && !searches_.contains(which)) return sender;
    layout_search& search = searches_[which];
    stop_waiting(search, sender.from);
    const auto earlier = search.asked.find(sender.from);
    const bool was_asked = earlier != search.asked.end();
    if (was_asked && !is_silent(*earlier)) return sender;  // the question may have been lost
    const auto silent = [this](const auto& entry) { return is_silent(entry); };
    if (search.asked.size() >= most_asked_remembered) std::erase_if(search.asked, silent);
    std::optional<asked_worker> out;
    if (detail::count_if(search.asked, std::not_fn(silent)) < most_asked) out = sender;
    // It has not answered: another one is asked.
    const auto other = detail::find_if(
        search.waiting, [&](const auto& entry) { return !search.asked.contains(entry.first); });
    if (out && was_asked && other != search.waiting.end()) {
      out = asked_worker{other->first, other->second.said.sequence};
      stop_waiting(search, out->from);
    }
    if (out) search.asked[out->from] = core_.now;
    const std::size_t bytes = bytes_of(join);
    if ((!out || out->from != sender.from) && bytes <= most_waiting_bytes - waiting_bytes_) {
      search.waiting.emplace(sender.from, waiting_join{said, client, bytes});
      waiting_bytes_ += bytes;
    }
    return out;
  }
  /// Joins that waited for a layout which the server has learnt since.
  [[nodiscard]] std::vector<waiting_join> take_told() { return std::exchange(told_, {}); }
  [[nodiscard]] bool is_waiting(incarnation id) const {
    return detail::any_of(searches_, [id](const auto& entry) { return entry.second.waiting.contains(id); });
  }
  /// The list of keys has changed. Joins of keys that are gone wait no more.
  template <typename Lookup>
  void review(const Lookup& rules_of) {
    for (auto& [which, search] : searches_) {
      for (auto& [from, join] : search.waiting) join.client.rules = rules_of(join.client.key);
      std::erase_if(search.waiting, [this](const auto& entry) {
        const bool is_revoked = entry.second.client.rules == nullptr;
        waiting_bytes_ -= is_revoked ? entry.second.bytes : 0;
        return is_revoked;
      });
    }
  }
  /// The worker does not wait to join (any more).
  void forget(incarnation id) {
    for (auto& [which, search] : searches_) {
      search.asked.erase(id);
      stop_waiting(search, id);
    }
  }

 private:
  [[nodiscard]] messages::status check_policies(const messages::join_request& join) const {
    const auto model = core_.models.find(join.model);
    if (model == core_.models.end()) return {};
    if (model->second.shards != join.shard.count) {
      return {errc::layout_mismatch, "model '" + join.model + "' has the shard count " +
                                         std::to_string(model->second.shards) + ", this worker says " +
                                         std::to_string(join.shard.count)};
    }
    for (const auto& [name, replica] : model->second.replicas) {
      for (const worker_state* worker : replica->workers) {
        if (worker != nullptr && (worker->access.integrity != join.form.integrity ||
                                  worker->access.transport != join.form.transport)) {
          return {errc::policy_mismatch, "the workers of model '" + join.model + "' use '" +
                                             worker->access.transport + "' and '" + worker->access.integrity +
                                             "', this one '" + join.form.transport + "' and '" +
                                             join.form.integrity + "': all must agree"};
        }
        if (worker != nullptr) return {};
      }
    }
    return {};
  }

  /// Throws `layout_mismatch` if the tensors are not those that were announced.
  [[nodiscard]] static layout layout_of(const messages::join_request& join) {
    layout offered{join.form.tensors, join.form.chunk_bytes};
    if (offered.digest() != join.form.layout_digest || offered.chunk_count() != join.form.chunk_count)
      throw error(errc::layout_mismatch, "the layout does not have the digest that was announced with it");
    return offered;
  }
  [[nodiscard]] messages::status check_layout(const messages::join_request& join, bool& wants_layout) {
    const auto model = core_.models.find(join.model);
    const bool known = model != core_.models.end() && model->second.layouts[join.shard.index].has_value();
    if (known && model->second.layouts[join.shard.index]->digest() == join.form.layout_digest) return {};
    if (join.form.tensors.empty()) {
      wants_layout = true;
      return {};
    }
    try {
      const std::size_t bytes = memory_of(join.form.tensors);
      if (auto full = check_layout_bytes(join, known ? 0 : bytes); !full.ok()) return full;
      layout offered = layout_of(join);
      if (known) {
        return {errc::layout_mismatch,
                "the layout differs from that of model '" + join.model + "', shard " + to_string(join.shard) +
                    ", which its first worker has set, at " +
                    first_difference(offered, *model->second.layouts[join.shard.index], "the model")};
      }
      model_state& state = core_.open_model(join.model, join.shard.count);
      state.layouts[join.shard.index] = std::move(offered);
      state.layout_bytes += bytes;
      end_search({join.model, join.shard.index});
    } catch (const error& e) {
      return {e.code(), e.sentence()};
    }
    return {};
  }

  /// Names are shown in logs, in errors of other workers and on terminals. (An address is its transport's own
  /// matter, and escaped where it is shown.)
  [[nodiscard]] static messages::status check_names(const messages::join_request& join) {
    for (const std::string* name :
         {&join.model, &join.replica, &join.location.datacenter, &join.location.rack, &join.location.host,
          &join.location.device, &join.form.transport, &join.form.consistency, &join.form.integrity}) {
      if (!is_plain_text(*name))
        return {errc::invalid_argument, "the name '" + escaped_text(std::string_view{*name}.substr(0, 64)) +
                                            "' has control characters, or is not UTF-8: names of workers, "
                                            "locations and policies must be plain text"};
    }
    return {};
  }

  using shard_name = std::pair<std::string, std::uint32_t>;  ///< model and shard
  struct layout_search {
    std::map<incarnation, time_point> asked{};      ///< and when
    std::map<incarnation, waiting_join> waiting{};  ///< of others
  };

  [[nodiscard]] bool is_silent(const std::pair<const incarnation, time_point>& asked) const noexcept {
    return core_.now - asked.second > answer_time;
  }
  void stop_waiting(layout_search& search, incarnation id) {
    const auto join = search.waiting.find(id);
    if (join == search.waiting.end()) return;
    waiting_bytes_ -= join->second.bytes;
    search.waiting.erase(join);
  }
  void stop_waiting(const layout_search& search) noexcept {
    for (const auto& [from, join] : search.waiting) waiting_bytes_ -= join.bytes;
  }
  [[nodiscard]] static std::size_t bytes_of(const messages::join_request& join) noexcept {
    std::size_t bytes = sizeof(waiting_join) + join.before.barred.size() * sizeof(incarnation);
    for (const std::string* text :
         {&join.model, &join.replica, &join.location.datacenter, &join.location.rack, &join.location.host,
          &join.location.device, &join.form.transport, &join.form.consistency, &join.form.integrity,
          &join.address.text})
      bytes += text->size();
    for (const messages::assignment& each : join.before.reading)
      bytes += sizeof(each) + each.source_replica.size() + each.address.text.size();
    return bytes;
  }
  /// The layout has arrived.
  void end_search(const shard_name& which) {
    const auto search = searches_.find(which);
    if (search == searches_.end()) return;
    stop_waiting(search->second);
    for (auto& [from, join] : search->second.waiting) told_.push_back(std::move(join));
    searches_.erase(search);
  }
  void forget_silent_searches() {
    std::erase_if(searches_, [this](const auto& entry) {
      const auto is_old = [this](const auto& asked) { return is_silent(asked); };
      if (!detail::all_of(entry.second.asked, is_old)) return false;
      stop_waiting(entry.second);
      return true;
    });
  }

  /// Checks what the server would store after admitting this worker against its bounds.
  [[nodiscard]] messages::status check_bounds(incarnation from, const messages::join_request& join) const {
    const catalog_bounds& most = core_.options.most;
    if (core_.find(from) != nullptr) return {};
    const auto full = [](const std::string& has, std::string_view option) {
      return messages::status{errc::limit_exceeded,
                              "this reference server is full: it has " + has +
                                  "; stop some, or raise the server's bound (in C++: catalog.most." +
                                  std::string{option} + ")"};
    };
    if (core_.workers.size() >= most.workers)
      return full(std::to_string(core_.workers.size()) + " workers", "workers");
    const auto model = core_.models.find(join.model);
    const bool is_new_model = model == core_.models.end();
    if (is_new_model && core_.models.size() >= most.models)
      return full(std::to_string(core_.models.size()) + " models", "models");
    if (!is_new_model && model->second.replicas.contains(join.replica)) return {};
    if (!is_new_model && model->second.replicas.size() >= most.replicas)
      return full(std::to_string(model->second.replicas.size()) + " replicas of model '" + join.model + "'",
                  "replicas");
    const std::size_t kept = core_.options.retained_versions;
    std::size_t records = join.shard.count * (is_new_model ? 2 + kept : 1);
    for (const auto& [name, known] : core_.models)
      records += known.shards * (1 + known.replicas.size() + std::max(known.versions.size(), kept));
    if (records > most.shard_records)
      return full(
          "room for " + std::to_string(most.shard_records) + " shards of models, replicas and versions",
          "shard_records");
    return {};
  }

  /// Approximate memory that a layout takes, in bytes.
  [[nodiscard]] static std::size_t memory_of(const std::vector<tensor_spec>& tensors) {
    std::size_t bytes = 0;
    for (const tensor_spec& tensor : tensors)
      bytes += sizeof tensor + tensor.name.size() + 8 * tensor.shape.size() + sizeof(layout_segment);
    return bytes;
  }
  [[nodiscard]] messages::status check_layout_bytes(const messages::join_request& join,
                                                    std::size_t more) const {
    std::size_t all = more;
    for (const auto& [name, model] : core_.models) all += model.layout_bytes;
    if (all <= core_.options.most.layout_bytes) return {};
    return {errc::limit_exceeded, "this reference server is full: the layout of model '" + join.model +
                                      "', shard " + to_string(join.shard) +
                                      ", does not fit beside those it has; stop some models, or raise "
                                      "the server's bound (in C++: catalog.most.layout_bytes)"};
  }

  static constexpr std::ptrdiff_t most_asked = 3;  ///< workers of a shard that have been asked and may answer
  static constexpr std::size_t most_asked_remembered = 64;
  static constexpr std::chrono::milliseconds answer_time{500};
  static constexpr std::size_t most_searches = 4096;
  /// Of the joins that wait. The senders of others repeat them.
  static constexpr std::size_t most_waiting_bytes = 64u << 20;

  core& core_;
  std::string_view consistency_;
  std::map<shard_name, layout_search> searches_;
  std::size_t waiting_bytes_ = 0;  ///< of joins in all searches
  std::vector<waiting_join> told_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
