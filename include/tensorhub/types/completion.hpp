#pragma once
/// \file completion.hpp
/// Outcomes of the data path. They are values: no function here throws.

#include <cstdint>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// The outcome of a posted read.
enum class completion_status : std::uint8_t {
  ok = 0,             ///< all bytes are in the target memory and visible
  access_denied = 1,  ///< unknown, stale or revoked key, or a read outside of its region; the endpoint stays
                      ///< usable where the transport can tell (capabilities::survives_access_errors)
  peer_lost = 2,      ///< connection broken, or the peer was silent for the peer time-out
  cut_off = 3,        ///< the source closed the connection to this reader deliberately
  local_error = 4,    ///< the target memory or the local device failed
  cancelled = 5,      ///< the endpoint or queue was destroyed or closed by its owner
};

[[nodiscard]] constexpr std::string_view to_string(completion_status status) noexcept {
  switch (status) {
    case completion_status::ok:
      return "ok";
    case completion_status::access_denied:
      return "access denied";
    case completion_status::peer_lost:
      return "peer lost";
    case completion_status::cut_off:
      return "cut off";
    case completion_status::local_error:
      return "local error";
    case completion_status::cancelled:
      return "cancelled";
  }
  return "unknown";
}

/// One completed read. After an error the target bytes are undefined: all, some or none of them may have been
/// written.
struct completion {
  request_id id = 0;
  completion_status status = completion_status::ok;
};

/// The result of `post_read`. `queue_full`: nothing was posted; poll, then post again.
enum class post_result : std::uint8_t { posted = 0, queue_full = 1 };

}  // namespace tensorhub::inline TENSORHUB_MODE
