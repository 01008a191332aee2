#pragma once
/// \file copy_view.hpp
/// An attached process's end of a shared copy: its connection, both memories mapped for reading, and what
/// it holds.
///
/// Thread safety: all members may be called from any thread.

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/file_view.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/copy_protocol.hpp"

namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail {

using namespace detail::local;

struct copy_hold {
  std::size_t side = 0;
  version_number version{};
};

class copy_view {
 public:
  copy_view(std::string name, clock::time_point until, const std::stop_token& stop);

  [[nodiscard]] std::span<const tensor_spec> tensors() const noexcept { return tensors_; }
  [[nodiscard]] std::span<const std::byte> tensor(const std::string& name, std::size_t side) const;

  [[nodiscard]] copy_hold hold(const version_selector& selector, clock::time_point until);
  void let_go(std::size_t side) noexcept;
  [[nodiscard]] version_number live_version() noexcept;

 private:
  void greet(clock::time_point until, const std::stop_token& stop);
  void expect(copy_packet& packet, detail::unique_fd& file, clock::time_point until,
              const std::stop_token& stop, copy_message kind);
  /// The file, mapped, if it is of this length, and cannot become shorter.
  [[nodiscard]] detail::file_mapping_view map(const detail::unique_fd& file, std::uint64_t bytes) const;
  void read_table(const detail::unique_fd& file, std::uint64_t encoded_bytes);
  void check_table() const;

  // Pre-condition of what follows: mutex_ is held.

  /// One call of `hold`; several may run at a time.
  struct hold_call {
    version_selector selector;
    bool has_asked = false;
  };
  /// Empty: something has to arrive first.
  [[nodiscard]] std::optional<copy_hold> try_hold(hold_call& call);
  /// Returns when a message may have arrived, or at `until`. Unlocks meanwhile.
  void await_news(std::unique_lock<std::mutex>& lock, clock::time_point until);
  /// What has arrived; while a thread sleeps until something does, it stays for that thread.
  void receive_all() noexcept;
  void send(copy_message kind, const copy_hold& what) noexcept;
  /// The call ends: nothing is kept of what it has asked for.
  void give_up(const hold_call& call) noexcept;
  [[nodiscard]] error failure(errc code, const std::string& sentence) const;

  const std::string name_;
  detail::unique_socket socket_;
  std::vector<tensor_spec> tensors_;
  std::vector<std::uint64_t> offsets_;
  std::map<std::string, std::size_t> positions_;
  std::array<detail::file_mapping_view, 2> memories_;

  std::mutex mutex_;  ///< of what follows
  std::condition_variable news_;
  bool is_awaited_ = false;  ///< a call of `hold` sleeps at the socket; the others wait for `news_`
  bool has_ended_ = false;
  std::optional<copy_hold> asked_;    ///< the answer to this request is on its way
  const hold_call* asker_ = nullptr;  ///< whose request or grant that is; null: nobody waits for it any more
  std::optional<copy_hold> granted_;  ///< the answer, not taken yet
  copy_hold live_{};
  std::array<std::size_t, 2> holders_{};  ///< objects of this process that hold a side
  std::array<version_number, 2> held_{};  ///< the version that they hold
};

}  // namespace tensorhub::inline TENSORHUB_MODE::shared_copy_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/copy_view.ipp"
#endif
