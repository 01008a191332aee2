#pragma once
/// \file copy_desk.hpp
/// The owner's end of a shared copy: it lets processes attach, tells them what is live, and knows which of
/// them hold which of the two memories.
///
/// Thread safety: all members may be called from any thread. One thread of its own.

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/detail/wake_event.hpp"
#include "tensorhub/worker/copy_protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail {

using namespace detail::local;

/// A file that attached processes get, open for reading only.
struct offered_file {
  detail::unique_socket descriptor{};
  std::uint64_t bytes = 0;
};

/// All that an attached process needs to find the tensors.
struct offered_copy {
  offered_file table{};
  std::uint64_t encoded_bytes = 0;  ///< of the table: without the offsets
  std::array<offered_file, 2> memories{};
};

/// How a wait for a memory's holders has ended.
enum class side_wait : std::uint8_t { free, timed_out, interrupted };

class copy_desk {
 public:
  /// Throws `invalid_argument` if a process of this machine shares a copy under this name already,
  /// `transport_failed` if there is no socket.
  copy_desk(const std::string& name, offered_copy what);
  ~copy_desk();
  copy_desk(const copy_desk&) = delete;
  copy_desk& operator=(const copy_desk&) = delete;

  /// Until nobody holds this side. Processes can begin to hold only the side that is live.
  [[nodiscard]] side_wait wait_until_free(std::size_t side, clock::time_point until);
  /// Ends the waits of other threads.
  void interrupt() noexcept;
  /// From now on this version, on this side, is what processes may begin to hold.
  void show(std::size_t side, version_number version) noexcept;

  struct attached_process {
    pid_t process = 0;
    std::array<bool, 2> holds{};  ///< either side
  };
  [[nodiscard]] std::vector<attached_process> attached() const;

 private:
  struct connection {
    detail::unique_socket socket{};
    attached_process who{};
  };

  void run() noexcept;
  void accept_one() noexcept;
  [[nodiscard]] bool greet(int socket) const noexcept;
  /// False: the connection is over.
  [[nodiscard]] bool answer(connection& each) noexcept;
  [[nodiscard]] copy_packet live() const noexcept;
  [[nodiscard]] bool is_held(std::size_t side) const noexcept;

  const offered_copy what_;
  const detail::unique_socket listener_;
  const detail::wake_event wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, connection> connections_;  ///< by descriptor; guarded by mutex_, as what follows
  std::size_t live_side_ = 0;
  version_number live_version_{};
  std::uint64_t interrupts_ = 0;
  bool is_out_of_descriptors_ = false;  ///< of the thread alone
  std::atomic<bool> stopping_{false};
  std::jthread thread_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/copy_desk.ipp"
#endif
