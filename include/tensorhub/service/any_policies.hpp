#pragma once
/// \file any_policies.hpp
/// The server's policies with their types erased: any scheduler, any consistency policy. Users name
/// policies as template arguments of `hub` and `reference_server`; the catalog is an ordinary class that
/// holds these two values.
///
/// The virtual call per scheduler decision (some microseconds of work) has no measurable cost.
///
/// Thread safety: that of the policy inside.

#include <concepts>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tensorhub/concepts/consistency.hpp"
#include "tensorhub/concepts/scheduler.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Holds a model of `scheduler`. Movable, not copyable.
class any_scheduler {
 public:
  template <scheduler Scheduler>
  any_scheduler(Scheduler policy)  // NOLINT(google-explicit-constructor): every scheduler is one
      : name_{Scheduler::name}, policy_{std::make_unique<holder<Scheduler>>(std::move(policy))} {}

  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  [[nodiscard]] source_limits limits() const noexcept { return policy_->limits(); }
  [[nodiscard]] source_choice choose(const source_query& query,
                                     std::span<const source_candidate> candidates) noexcept {
    return policy_->choose(query, candidates);
  }

 private:
  struct interface {
    virtual ~interface() = default;
    [[nodiscard]] virtual source_limits limits() const noexcept = 0;
    [[nodiscard]] virtual source_choice choose(const source_query& query,
                                               std::span<const source_candidate> candidates) noexcept = 0;
  };
  template <typename Scheduler>
  struct holder final : interface {
    explicit holder(Scheduler held) : policy{std::move(held)} {}
    [[nodiscard]] source_limits limits() const noexcept override { return policy.limits(); }
    [[nodiscard]] source_choice choose(const source_query& query,
                                       std::span<const source_candidate> candidates) noexcept override {
      return policy.choose(query, candidates);
    }
    Scheduler policy;
  };
  std::string_view name_;
  std::unique_ptr<interface> policy_;
};

/// The constant properties of a consistency policy.
struct consistency_traits {
  std::string_view name{};
  bool decides_per_group = true;
  bool completes_per_group = true;
  template <consistency Consistency>
  [[nodiscard]] static constexpr consistency_traits of() noexcept {
    return {Consistency::name, Consistency::decides_per_group, Consistency::completes_per_group};
  }
};

/// Holds a model of `consistency`. Movable, not copyable.
class any_consistency {
 public:
  template <consistency Consistency>
  any_consistency(Consistency policy)  // NOLINT(google-explicit-constructor): every such policy is one
      : traits_{consistency_traits::of<Consistency>()},
        policy_{std::make_unique<holder<Consistency>>(std::move(policy))} {}

  [[nodiscard]] const consistency_traits& traits() const noexcept { return traits_; }
  [[nodiscard]] version_decision decide(const version_selector& selector,
                                        const version_view& view) const noexcept {
    return policy_->decide(selector, view);
  }

 private:
  struct interface {
    virtual ~interface() = default;
    [[nodiscard]] virtual version_decision decide(const version_selector& selector,
                                                  const version_view& view) const noexcept = 0;
  };
  template <typename Consistency>
  struct holder final : interface {
    explicit holder(Consistency held) : policy{std::move(held)} {}
    [[nodiscard]] version_decision decide(const version_selector& selector,
                                          const version_view& view) const noexcept override {
      return policy.decide(selector, view);
    }
    Consistency policy;
  };
  consistency_traits traits_;
  std::unique_ptr<interface> policy_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
