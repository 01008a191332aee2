#pragma once
/// \file link.hpp
/// A reader's connection to one source: caches the source's answers about its regions, and copies from them.
///
/// A link asks for each region once, by its key; the answers are kept as long as the connection. Files in the
/// answers are mapped once (read-only), and released when they contain no granted region any more. A device
/// of this process maps device memory (imports.hpp) for the same time; staged memory is
/// requested piece by piece (staging.hpp).
///
/// Safety of the copy: the kernel names the source's process for the socket. The reader holds a pidfd of it,
/// if the kernel has pidfds, and before it attaches has found the announced probe word in its memory. After
/// each piece the reader checks the process (it has not ended and the socket is not hung up, so that it was
/// the same process all the time) and both grants (nothing was revoked in the meantime).
///
/// Thread safety: several threads may call `copy` at the same time, also while one other thread calls the
/// other members.

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/local_socket.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/imports.hpp"
#include "tensorhub/transports/same_host/machine.hpp"
#include "tensorhub/transports/same_host/options.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

using namespace detail::local;

enum class region_state : std::uint8_t { asked, granted, denied };

/// The result of a device's attempt to map a region's allocation.
struct mapped_region {
  device_access* by = nullptr;
  std::shared_ptr<const device_import> memory{};  ///< null: the attempt failed, and so would the next
  std::string why{};                              ///< the reason of the failure
};

/// This reader's knowledge of a source's region. Once granted or denied it does not change, except `mapped`,
/// which belongs to the link's user.
struct region_view {
  region_key key{};
  region_state state = region_state::asked;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  grant given{};
  std::shared_ptr<const remote_file> file{};
  std::uint64_t file_offset = 0;
  region_memory memory = region_memory::host;
  std::uint64_t export_number = 0;
  device_export exported{};
  std::string why{};
  mutable std::vector<mapped_region> mapped{};
};

/// A slot of the staging file, as its reader sees it.
struct stage_slot {
  enum class state_type : std::uint8_t { free, asked, ready, denied, failed };
  state_type state = state_type::free;
  const void* owner = nullptr;  ///< the read; null: no read waits for the slot any more
  std::uint64_t number = 0;     ///< of the request
  std::uint64_t at = 0;         ///< first byte, relative to the read's first byte
  std::uint64_t bytes = 0;
};

enum class answer_outcome : std::uint8_t { some, none, lost };

struct ends {
  incarnation self{};
  incarnation peer{};
};

class link {
 public:
  /// Connects and greets. Throws `transport_failed` or `timed_out`.
  link(const transport_address& where, const same_host_options& options, const machine_identity& machine,
       incarnation self, incarnation peer, std::shared_ptr<import_table> imports, clock::time_point until);
  link(const link&) = delete;
  link& operator=(const link&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return text_; }
  [[nodiscard]] incarnation self() const noexcept { return ends_.self; }
  [[nodiscard]] incarnation peer() const noexcept { return ends_.peer; }
  [[nodiscard]] int socket() const noexcept { return socket_.get(); }

  /// The region with this key; a new region is requested from the source. May throw bad_alloc.
  [[nodiscard]] std::shared_ptr<const region_view> region(const region_key& key);

  /// Sends requests, up to the permitted number.
  void ask() noexcept;

  /// Receives the answers that have arrived.
  [[nodiscard]] answer_outcome take_answers() noexcept;

  // ---- staged pieces ------------------------------------------------------------------------------------

  /// Requests [offset + at, offset + at + bytes) of a granted region. False: no slot is free, or the socket
  /// accepts no packet (errno is EAGAIN, or the socket's error).
  [[nodiscard]] bool stage(const region_view& region, const void* owner, std::uint64_t offset,
                           std::uint64_t at, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::array<stage_slot, stage_slots>& slots() noexcept { return slots_; }
  [[nodiscard]] const std::array<stage_slot, stage_slots>& slots() const noexcept { return slots_; }
  /// The slot's bytes, once the slot is ready.
  [[nodiscard]] const std::byte* staged(const stage_slot& slot) const noexcept;
  /// The device will copy from the slots.
  void pin_staged(device_access& by) noexcept;
  /// Drops this read's pieces.
  void forget(const void* owner) noexcept;
  /// The number of requested pieces.
  [[nodiscard]] std::size_t staging() const noexcept { return staging_; }

  // ---- mapped device memory -----------------------------------------------------------------------------

  /// True: the source is this process, and its device memory has the same address here.
  [[nodiscard]] bool is_own_process() const noexcept { return process_.peer == process_.own; }

  /// The first byte of a granted region of device memory, for this device; null: the region must be staged.
  /// May throw bad_alloc.
  [[nodiscard]] const std::byte* map(const region_view& region, device_access& by);

  /// Why memory of this source is staged, or cannot be read; empty if there was none of that kind so far.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  /// May throw bad_alloc.
  void note(const std::string& why);

  /// Time of the last answer; valid while a request is outstanding.
  [[nodiscard]] clock::time_point last_answer() const noexcept { return last_answer_; }

  /// Requests of a former owner may be outstanding: the timeout of the new owner starts now.
  void begin_again() noexcept { last_answer_ = clock::now(); }

  /// Releases revoked regions and files.
  void sweep() noexcept;

  /// `ok`, or why no memory of this source can be read any more.
  [[nodiscard]] completion_status state() const noexcept;

  /// Copies [offset, offset + bytes) of a granted region. Precondition: the range lies inside the region.
  [[nodiscard]] completion_status copy(const region_view& region, std::uint64_t offset, std::byte* target,
                                       std::uint64_t bytes, bool streaming) const noexcept;

  /// The permission according to the current grants.
  [[nodiscard]] completion_status permission(const region_view& region) const noexcept;

  /// The status of a copy that has just ended: `failure` is zero, or its errno. `seen_alive`: since the copy
  /// ended, the source has been seen alive.
  [[nodiscard]] completion_status verdict(const region_view& region, int failure,
                                          bool seen_alive = false) const noexcept;

 private:
  struct question {
    std::shared_ptr<region_view> region{};
    bool brings_file = false;
  };

  [[noreturn]] void refuse(const std::string& why) const;

  void take_welcome(clock::time_point until);

  void hold_process() noexcept;

  /// Checks that the kernel permits this process to read the other's memory, and that it is the right
  /// process.
  void probe(uid_t its_user);

  [[nodiscard]] bool is_alive() const noexcept;

  void note_unreadable();

  /// False: the answer is invalid.
  [[nodiscard]] bool take_in(const question& asked, const region_answer& answer,
                             detail::unique_fd descriptor);

  /// False: the answer is invalid, or the staging file is not usable.
  [[nodiscard]] bool take_staged(const region_answer& answer, const detail::unique_fd& descriptor) noexcept;

  std::string text_;
  ends ends_;
  bool maps_files_;
  bool maps_devices_;
  std::shared_ptr<import_table> imports_;
  std::string why_;
  bool can_attach_ = false;
  detail::unique_socket socket_;
  struct process_ids {
    pid_t peer = 0;
    pid_t own = ::getpid();
  };
  process_ids process_{};
  detail::unique_fd process_file_;
  grant_view grants_;
  grant own_{};
  std::uint64_t probe_address_ = 0;
  std::uint64_t probe_value_ = 0;

  std::unordered_map<region_key, std::shared_ptr<region_view>, region_key_hash> regions_;
  std::size_t sweep_at_ = 64;
  std::unordered_map<std::uint64_t, std::weak_ptr<const remote_file>> files_;
  std::deque<question> to_ask_;
  std::unordered_map<std::uint64_t, question> asked_;
  std::uint64_t last_number_ = 0;
  struct stage_view {
    file_mapping_view view{};
    pinned_pages pages{};  ///< after the mapping: unpinned before it ends
  };
  stage_view stage_{};
  std::array<stage_slot, stage_slots> slots_{};
  std::size_t staging_ = 0;
  bool is_waiting_ = false;
  clock::time_point last_answer_{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/link.ipp"
#endif
