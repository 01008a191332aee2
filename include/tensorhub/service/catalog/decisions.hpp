#pragma once
/// \file decisions.hpp
/// Which version an update gets: the consistency policy decides about the versions that are available, and
/// the rules here say when its decision has to wait.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/service/catalog/core.hpp"
#include "tensorhub/service/catalog/versions.hpp"
#include "tensorhub/types/replica_name.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

class decisions {
 public:
  decisions(const core& core, any_consistency consistency)
      : core_{core}, consistency_{std::move(consistency)} {}

  struct outcome : version_decision {
    /// Set: the policy has decided what its concept does not allow. A sentence about it and about what there
    /// is; the other members are what it decided.
    std::string fault{};
  };

  /// For an operation without a version, by the call of one of its shards. Of `refuse`, `version` is the one
  /// that was asked for. The policy is not trusted: what it keeps must be held, and what it takes available,
  /// or the call would succeed without the version, or wait in vain.
  [[nodiscard]] outcome make(const operation_state& operation, const member_state& asked) const {
    using enum version_decision::kind_type;
    const model_state& model = *operation.replica->model;
    version_selector selector = asked.selector;
    selector.version = valid_version(model.keeps, selector.version);
    version_view view = view_for(operation, asked);
    version_decision decision = consistency_.decide(selector, view);
    if (decision.kind == keep && selector.kind == version_selector::kind_type::latest &&
        is_behind_its_parts(operation, view.held)) {
      view.held = {};
      decision = consistency_.decide(selector, view);
    }
    if (decision.kind == refuse) {
      decision.version = selector.version;
      const bool may_be_had = may_come_back(model, selector.version) || may_arrive(model, selector.version) ||
                              versions::may_hold(*operation.replica, selector.version) ||
                              has_available(operation, selector.version);
      if (may_be_had) return {};
    }
    // Workers that are not back yet may have a newer version, and no version is certainly lost.
    const bool is_named = selector.kind == version_selector::kind_type::exactly;
    if (core_.recovering(model) && !is_named) return {};
    if (decision.kind != wait) return checked(operation, asked, view, decision);
    const version_number open = open_version(operation, asked);
    return {open ? version_decision{take, open, errc::ok} : decision};
  }

  /// A holder of this version may still join, even if the count says that all workers are back. False if this
  /// server has seen the version come and go, and no earlier server existed.
  [[nodiscard]] bool may_come_back(const model_state& model, version_number version) const {
    if (!core_.recovering()) return false;
    const auto record = model.versions.find(version);
    return model.before.back > 0 || record == model.versions.end() || !record->second.ever_complete;
  }

 private:
  /// `keep`, `take` or `refuse`, if the policy may decide it. A version that is available may be taken, even
  /// if the view does not show it; and a policy need not know of lines (types/version_number.hpp).
  [[nodiscard]] outcome checked(const operation_state& operation, const member_state& asked,
                                const version_view& view, version_decision decision) const {
    using enum version_decision::kind_type;
    if (decision.kind == refuse) {
      if (decision.reason != errc::ok) return {decision};
      return {decision, said_of(operation, asked, view, "refuse, without a reason")};
    }
    const bool is_there = has_available(operation, decision.version);
    const bool is_held = view.held && (decision.version == view.held ||
                                       (!is_there && decision.version.number() == view.held.number()));
    const bool is_possible = is_held || (decision.kind == take && is_there);
    if (!is_possible || !accepts(asked.selector, decision.version)) {
      const std::string what = decision.kind == keep ? "keep version " : "take version ";
      return {decision, said_of(operation, asked, view, what + to_string(decision.version))};
    }
    if (is_held) decision.version = view.held;
    return {decision};
  }
  /// What is wrong, and what there is.
  [[nodiscard]] std::string said_of(const operation_state& operation, const member_state& asked,
                                    const version_view& view, const std::string& what) const {
    const auto name_of = [](version_number version) {
      return version ? "version " + to_string(version) : std::string{"no version"};
    };
    return "the server's consistency policy '" + std::string{consistency_.traits().name} +
           "' has decided to " + what + " for replica '" + operation.replica->name + "', which asked for " +
           to_string(asked.selector) + " and holds " + name_of(view.held) + ", while " +
           name_of(view.latest_available) +
           " is the latest one that is available: the policy breaks its rules (testing::check_consistency "
           "finds this)";
  }

  /// The other of two memories that take turns has a newer version: to keep the older one would go back.
  [[nodiscard]] static bool is_behind_its_parts(const operation_state& operation, version_number held) {
    const replica_state& replica = *operation.replica;
    const std::string_view whole = whole_of(replica.name);
    if (whole.empty()) return false;
    return detail::any_of(parts_of(*replica.model, std::string{whole}), [&](const replica_state* each) {
      return !each->temporary && held_by(*each, operation.only_shard) > held;
    });
  }
  /// Perhaps `view_for` does not show it, to a call that prefers what is local.
  [[nodiscard]] static bool has_available(const operation_state& operation, version_number version) {
    const model_state& model = *operation.replica->model;
    const auto record = model.versions.find(version);
    return record != model.versions.end() && is_available(record->second, operation.only_shard);
  }

  /// The newest open version that the call would wait for otherwise, if every shard of it can be read.
  [[nodiscard]] static version_number open_version(const operation_state& operation,
                                                   const member_state& asked) {
    const model_state& model = *operation.replica->model;
    if (!asked.ahead) return {};
    const bool only_local = takes_only_local(operation, asked);
    const auto may_begin = [&](version_number version) {
      for (std::uint32_t shard = 0; shard < model.shards; ++shard) {
        if (operation.only_shard && *operation.only_shard != shard) continue;
        const worker_state* const reader = operation.replica->workers[shard];
        const std::string* const place =
            only_local && reader != nullptr ? &reader->location.datacenter : nullptr;
        const auto& sources = *model.versions.at(version).sources[shard];
        const std::size_t complete =
            place != nullptr ? sources.complete_count(*place) : sources.complete_count();
        if (complete == 0 && !versions::is_shown_open(model, version, shard, place)) return false;
      }
      return true;
    };
    for (auto each = model.versions.rbegin(); each != model.versions.rend(); ++each) {
      if (each->second.filling > 0 && !is_void(model, each->first) && accepts(asked.selector, each->first) &&
          each->first > operation.replica->complete && may_begin(each->first))
        return each->first;
    }
    return {};
  }

  /// Others read the version, and may have all of it: their reports may be on their way.
  [[nodiscard]] static bool may_arrive(const model_state& model, version_number version) {
    return model.operations.users.contains(version) &&
           detail::any_of(model.operations.all, [version](const auto& entry) {
             return entry.second->is_decided() && !entry.second->is_publish &&
                    entry.second->version == version;
           });
  }

  [[nodiscard]] static version_number held_by(const operation_state& operation) {
    return held_by(*operation.replica, operation.only_shard);
  }
  [[nodiscard]] static version_number held_by(const replica_state& replica,
                                              std::optional<std::uint32_t> only_shard) {
    if (!only_shard) return replica.complete;
    const worker_state* worker = replica.workers[*only_shard];
    const bool holds =
        worker != nullptr && worker->holds() && !is_void(*replica.model, worker->held->version);
    return holds ? worker->held->version : version_number{};
  }
  /// Who holds nothing takes whatever there is. A stage, or one of two memories that take turns, counts what
  /// the other parts of its replica hold, if that can be read.
  [[nodiscard]] static bool takes_only_local(const operation_state& operation, const member_state& asked) {
    if (asked.reach != messages::update_reach::prefer_local) return false;
    if (held_by(operation)) return true;
    const model_state& model = *operation.replica->model;
    const auto can_be_read = [&](const replica_state* each) {
      const auto record = model.versions.find(held_by(*each, operation.only_shard));
      return !each->temporary && record != model.versions.end() &&
             is_available(record->second, operation.only_shard) && is_local(operation, record->second);
    };
    return detail::any_of(relatives_of(*operation.replica), can_be_read);
  }

  [[nodiscard]] version_view view_for(const operation_state& operation, const member_state& asked) const {
    const model_state& model = *operation.replica->model;
    version_view view;
    view.latest_ever = model.latest_ever;
    view.held = held_by(operation);
    const bool only_local = takes_only_local(operation, asked);
    for (const auto& [version, state] : model.versions) {
      if (!is_available(state, operation.only_shard)) continue;
      if (only_local && version != view.held && !is_local(operation, state)) continue;
      view.latest_available = version;
      if (asked.selector.kind == version_selector::kind_type::exactly && accepts(asked.selector, version))
        view.wanted_available = true;
    }
    return view;
  }

  /// For every shard of the replica, a worker in that shard's datacenter holds the version.
  [[nodiscard]] static bool is_local(const operation_state& operation, const version_state& state) {
    const replica_state& replica = *operation.replica;
    for (std::size_t shard = 0; shard < replica.workers.size(); ++shard) {
      const worker_state* worker = replica.workers[shard];
      if (worker == nullptr || (operation.only_shard && *operation.only_shard != shard)) continue;
      if (state.sources[shard]->complete_count(worker->location.datacenter) == 0) return false;
    }
    return true;
  }

  [[nodiscard]] static bool is_available(const version_state& state,
                                         std::optional<std::uint32_t> only_shard) {
    return only_shard ? state.sources[*only_shard]->complete_count() > 0 : state.complete_replicas > 0;
  }

  const core& core_;
  any_consistency consistency_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
