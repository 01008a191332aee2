#pragma once
/// \file kept_links.hpp
/// Connections that no endpoint uses at present, with their mapped files: mapping gigabytes again costs as
/// much as copying them.
///
/// Thread safety: all members may be called from any thread.

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/same_host/link.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

class kept_links {
 public:
  explicit kept_links(std::size_t most) : most_{most} { links_.reserve(most + 1); }

  /// A working connection of `self` to that process, or null.
  [[nodiscard]] std::unique_ptr<link> take(const std::string& address, incarnation self,
                                           incarnation peer) noexcept;

  /// Keeps a connection; it replaces the oldest if there are too many.
  void put(std::unique_ptr<link> one) noexcept;

  /// Releases connections to ended sources, and revoked memory. Call it periodically.
  void sweep() noexcept;

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<link>> links_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/kept_links.ipp"
#endif
