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

TENSORHUB_DECL void fill_random(std::span<std::uint64_t, 2> words) {
  for (;;) {
    const auto filled = ::getrandom(words.data(), words.size_bytes(), 0);
    if (filled == static_cast<ssize_t>(words.size_bytes())) return;
    if (filled < 0 && errno != EINTR)
      throw error(errc::system_failed,
                  std::string{"the system gives no random numbers: "} + std::strerror(errno));
  }
}

TENSORHUB_DECL std::uint64_t random_number() {
  std::uint64_t words[2] = {0, 0};
  while (words[0] == 0) fill_random(words);
  return words[0];
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
