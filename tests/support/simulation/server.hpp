#pragma once
/// \file server.hpp
/// The reference server of a simulated history, and the policies of a history. Ordinary classes: the world is
/// compiled once for all servers and policies.

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/integrity.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/service/any_policies.hpp"
#include "tensorhub/service/catalog.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The catalog. Broken servers, which the rules must catch, override what they do wrong.
class simulated_server : public catalog {
 public:
  using catalog::catalog;
  virtual ~simulated_server() = default;

  virtual void receive(time_point now, const messages::envelope& message) { pass(now, message); }
  virtual void advance(time_point now) { catalog::advance(now); }
  [[nodiscard]] virtual std::vector<outgoing> take_output() { return catalog::take_output(); }
  [[nodiscard]] virtual source_limits limits() const noexcept { return catalog::limits(); }
  /// Whether the server counts this lease as one of its source's.
  [[nodiscard]] virtual bool counts(const catalog_detail::lease_state&) const { return true; }

  bool takes_more = false;  ///< further messages may come before the output is taken

  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    catalog::for_each_lease([&](const catalog_detail::lease_state& lease) {
      if (counts(lease)) visit(lease);
    });
  }

 protected:
  void pass(time_point now, const messages::envelope& message) {
    catalog::receive(now, message, {}, takes_more);
  }
};

/// An integrity policy as functions (concepts/integrity.hpp says what each means).
struct simulated_integrity {
  std::string_view name;
  bool enabled;
  digest_seeds (*bind)(std::string_view model, version_number version, shard_of shard);
  digest128 (*chunk_digest)(std::uint64_t seed, std::uint64_t chunk, std::span<const std::byte> bytes);
  digest128 (*root)(std::uint64_t seed, std::span<const digest128> table);
};

/// What the servers and the workers of a history decide by.
struct simulated_policies {
  std::function<std::unique_ptr<simulated_server>(const catalog_options&, server_epoch)> make_server;
  consistency_traits consistency;
  simulated_integrity integrity;
};

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent,
          integrity Integrity = xxh3_128, std::derived_from<simulated_server> Server = simulated_server>
[[nodiscard]] simulated_policies policies_of() {
  return {[](const catalog_options& options, server_epoch epoch) -> std::unique_ptr<simulated_server> {
            return std::make_unique<Server>(options, epoch, Scheduler{typename Scheduler::options{}},
                                            Consistency{typename Consistency::options{}});
          },
          consistency_traits::of<Consistency>(),
          {Integrity::name, Integrity::enabled, Integrity::bind, Integrity::chunk_digest, Integrity::root}};
}

/// The default policies, decided by a broken server.
template <std::derived_from<simulated_server> Server>
[[nodiscard]] simulated_policies decided_by() {
  return policies_of<nearest_source, group_consistent, xxh3_128, Server>();
}

/// The default policies, with another time after a fail-over in which a server waits for workers.
[[nodiscard]] inline simulated_policies with_grace(std::chrono::milliseconds grace) {
  simulated_policies out = policies_of();
  out.make_server = [grace](catalog_options options, server_epoch epoch) {
    options.recovery_grace = grace;
    return std::make_unique<simulated_server>(std::move(options), epoch);
  };
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
