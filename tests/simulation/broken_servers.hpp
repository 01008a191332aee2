#pragma once
/// \file broken_servers.hpp
/// Catalogs with a planted bug each, which random histories (planted.cpp) and the exhaustive search
/// (exhaustive.cpp) must both find.

#include <chrono>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// The lease of a dead reader ends at once: its source is not told to cut it off, nor waited for.
class server_that_expires_leases : public catalog {
 public:
  using catalog::catalog;
  void receive(time_point now, const messages::envelope& message) {
    catalog::receive(now, message);
    expire(now);
  }
  void advance(time_point now) {
    catalog::advance(now);
    expire(now);
  }
  [[nodiscard]] std::vector<outgoing> take_output() {
    auto output = catalog::take_output();
    std::erase_if(output, [](const outgoing& out) {
      return holds_alternative<messages::cut_off_push>(out.message.body);
    });
    return output;
  }

 private:
  void expire(time_point now) {
    std::vector<std::pair<incarnation, incarnation>> ended;
    for_each_lease([&](const auto& lease) {
      if (lease.cutting_off) ended.emplace_back(lease.source, lease.reader);
    });
    for (const auto& [source, reader] : ended) {
      catalog::receive(
          now,
          {source.value, {++last_ | std::uint64_t{1} << 50}, {}, messages::cut_off_done_request{reader}});
    }
  }
  std::uint64_t last_ = 0;
};

/// Lets the keys live that an earlier server's readers have.
class server_that_revokes_nothing : public catalog {
 public:
  using catalog::catalog;
  [[nodiscard]] std::vector<outgoing> take_output() {
    auto output = catalog::take_output();
    for (outgoing& out : output) {
      if (auto* drained = get_if<messages::drained_reply>(&out.message.body)) drained->revoke = false;
    }
    return output;
  }
};

/// Counts a lease from the moment at which its reader is first heard after it was told of it: an unpublish
/// does not wait for those that have only been assigned.
class server_that_counts_at_the_start : public catalog {
 public:
  using catalog::catalog;
  void receive(time_point now, const messages::envelope& message) {
    for_each_lease([&](const auto& lease) {
      if (lease.reader.value == message.sender) started_.insert(lease.id);
    });
    catalog::receive(now, message);
    const auto* unpublish = get_if<messages::unpublish_request>(&message.body);
    const incarnation source{message.sender};
    const auto* record = record_of(source);
    if (unpublish == nullptr || record == nullptr || !record->drain) return;
    bool waits = false;
    catalog::for_each_lease(
        [&](const auto& lease) { waits = waits || (lease.source == source && started_.contains(lease.id)); });
    if (!waits) early_.push_back({source, {epoch().value, message.sequence, {}, messages::drained_reply{}}});
  }
  [[nodiscard]] std::vector<outgoing> take_output() {
    auto output = catalog::take_output();
    for (outgoing& out : std::exchange(early_, {})) output.push_back(std::move(out));
    return output;
  }
  /// Those that it counts.
  template <typename Visitor>
  void for_each_lease(Visitor&& visit) const {
    catalog::for_each_lease([&](const auto& lease) {
      if (started_.contains(lease.id) || !lease.reader || !record_of(lease.source) ||
          !record_of(lease.source)->drain)
        visit(lease);
    });
  }

 private:
  std::set<lease_id> started_;
  std::vector<outgoing> early_;
};

/// Believes too soon that whoever is there is all there is.
class server_without_grace : public catalog {
 public:
  server_without_grace(catalog_options options, server_epoch epoch)
      : catalog{without_grace(std::move(options)), epoch} {}

 private:
  [[nodiscard]] static catalog_options without_grace(catalog_options options) {
    options.recovery_grace = std::chrono::milliseconds{60};
    return options;
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
