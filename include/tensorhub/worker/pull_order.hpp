#pragma once
/// \file pull_order.hpp
/// A transfer's orders, in the words of the driver that carries them out. Values.

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transfer/pull_report.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What to read, from whom, and how it is shown meanwhile.
struct pull_order {
  version_number version{};
  std::uint64_t epoch = 0;    ///< of the control block while it runs
  std::uint64_t ordinal = 0;  ///< of this reader: where it begins
  std::vector<pull_target> sources{};
  bool open = false;                      ///< it ends only after `pull_driver::commit`
  std::chrono::milliseconds time_left{};  ///< of the call: no attempt to connect goes on beyond it
};
/// A source more, one less, or one for another.
struct pull_change {
  std::optional<pull_target> added{};
  lease_id released{};  ///< zero: none
};

}  // namespace tensorhub::inline TENSORHUB_MODE
