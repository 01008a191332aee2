#pragma once
/// \file random_id.ipp
/// Random numbers from getrandom(2): definitions of detail/random_id.hpp.

#include "tensorhub/detail/random_id.hpp"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL std::uint64_t random_number() {
  for (;;) {
    std::uint64_t value = 0;
    const auto filled = ::getrandom(&value, sizeof value, 0);
    if (filled == static_cast<ssize_t>(sizeof value) && value != 0) return value;
    if (filled < 0 && errno != EINTR)
      throw error(errc::system_failed,
                  std::string{"the system gives no random numbers: "} + std::strerror(errno));
  }
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
