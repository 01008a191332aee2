#pragma once
/// \file outlived_models.hpp
/// What a server keeps of models whose workers are all gone, but may only have been cut off: they come back
/// with versions that must not be taken for others.
///
/// Thread safety: part of the catalog.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

struct outlived_model {
  std::uint64_t turn = 0;        ///< of those that are kept, the lowest goes first
  version_number latest_seen{};  ///< what is available is for those that come back to say
  messages::retention keeps{};
};

class outlived_models {
 public:
  /// Workers may join and die under ever new names.
  static constexpr std::size_t most = 256;

  void keep(const std::string& name, outlived_model model) {
    if (all_.size() == most && !all_.contains(name)) {
      all_.erase(std::min_element(all_.begin(), all_.end(), [](const auto& a, const auto& b) {
        return a.second.turn < b.second.turn;
      }));
    }
    model.turn = ++turn_;
    all_.insert_or_assign(name, std::move(model));
  }
  [[nodiscard]] std::optional<outlived_model> take(const std::string& name) {
    auto kept = all_.extract(name);
    return kept ? std::optional{std::move(kept.mapped())} : std::nullopt;
  }
  [[nodiscard]] const std::map<std::string, outlived_model>& all() const noexcept { return all_; }

 private:
  std::map<std::string, outlived_model> all_;
  std::uint64_t turn_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
