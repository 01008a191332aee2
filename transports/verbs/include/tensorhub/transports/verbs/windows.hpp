#pragma once
/// \file windows.hpp
/// Memory windows: keys of peers that are made and destroyed at a cost that does not depend on the memory.
///
/// A window of type 1 opens a piece of registered memory to remote reads, under a number of its own, on all
/// connections of its protection domain. It is opened ("bound") by a work request. Each rail has a queue pair
/// for this alone, which is connected to itself and sends no packet.
///
/// A window's destruction must end the reads through it, as deregistering memory does (promise 5 of
/// concepts/transport.hpp). Adapters are trusted with that, as by storage protocols; none was at hand.
/// Soft-RoCE does not wait for the packet that it is just making, so that a read may end `ok` with bytes that
/// were written later, up to 4 KiB.
///
/// Thread safety: any thread; the windows of one rail are bound one after the other.

#include <infiniband/verbs.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/transports/verbs/handles.hpp"
#include "tensorhub/transports/verbs/options.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail {

/// Makes the windows of one rail.
class window_maker {
 public:
  /// `gid_index` is used on Ethernet only.
  window_maker(ibv_pd& domain, std::uint8_t port, int gid_index)
      : domain_{domain}, port_{port}, gid_index_{gid_index} {}

  /// Opens all of the registration to remote reads. 0, or why not (`window_trouble`): then `made` is null. A
  /// failure ends the queue pair; the next call makes another.
  [[nodiscard]] int make(ibv_mr& over, ibv_mw*& made) noexcept;

 private:
  static constexpr std::chrono::seconds bind_timeout{2};

  [[nodiscard]] int open() noexcept;
  [[nodiscard]] int connect_to_itself() noexcept;
  [[nodiscard]] int bind(ibv_mw& window, ibv_mr& over) noexcept;

  ibv_pd& domain_;
  const std::uint8_t port_;
  const int gid_index_;
  std::mutex mutex_;
  handle<ibv_cq> completions_;  ///< guarded by mutex_
  handle<ibv_qp> queue_pair_;   ///< guarded by mutex_
};

/// The words for a result of `window_maker::make`.
[[nodiscard]] std::string window_trouble(int number);

/// Tries one window. Null, with the reason: the rail is not to have any, or cannot.
[[nodiscard]] std::unique_ptr<window_maker> find_windows(ibv_pd& domain, std::uint8_t port, int gid_index,
                                                         revocation_mode mode, std::string& why_not);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::verbs_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/verbs/impl/windows.ipp"
#endif
