#pragma once
/// \file data_plane.hpp
/// The part of a worker that depends on its transport, its integrity policy and its memory space, erased
/// here, once.
///
///     publisher, subscriber, ...   know the policies; they only hand over a `data_plane_maker`
///     worker                       knows none: it calls a `data_plane`, once per operation
///     policy_data_plane            knows them again, and does what is done per chunk
///
/// An operation of a worker costs a few virtual calls; a chunk costs none.
///
/// Thread safety: of a `data_plane`, `address`, `refused_connections`, `lines_to_log`, `cut_off`, `renew`,
/// `cost`, `forget_digests`, `transfers`, `unpack`, `raise_epoch`, `show_again` and `revoke_all` may be
/// called from any thread; the worker serialises everything else.
///
/// Errors: `error`, as the parts below throw them. They do not name the worker yet.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/log.hpp"
#include "tensorhub/transfer/pull_driver.hpp"
#include "tensorhub/transfer/registration.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/types/version_number.hpp"
#include "tensorhub/worker/pull_order.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a transfer tells its worker. Any thread of the transfer calls.
struct transfer_events : source_events {
  /// These chunks are here and verified. The transfer's lock is held: this must be short and must not call
  /// it.
  std::function<void(std::span<const chunk_index>)> arrived{};
  std::atomic<std::uint64_t>* chunks_received = nullptr;  ///< counted up; borrowed
};

/// Memory of the library's own for a set of tensors.
class owned_tensors {
 public:
  owned_tensors() = default;
  virtual ~owned_tensors() = default;
  owned_tensors(const owned_tensors&) = delete;
  owned_tensors& operator=(const owned_tensors&) = delete;

  /// First byte of a tensor; null if it has none. Pre-condition: `tensor` is a position in the set.
  [[nodiscard]] virtual std::byte* data(std::size_t tensor) const noexcept = 0;
  /// All of it, and the file that it lies in, if it does; no bytes if no tensor has any.
  [[nodiscard]] virtual memory_range range() const noexcept = 0;
};

/// Where such memory lies: in the worker's memory space, or in host memory from which that space copies fast.
enum class tensor_place : std::uint8_t { memory_space = 0, offload_space = 1 };

/// The digests of a version's chunks (none where integrity is off), and the root over them.
struct version_digests {
  std::vector<digest128> table{};
  digest128 root{};
  std::uint64_t digested_chunks = 0;  ///< the others are kept from the version before
};

class data_plane {
 public:
  data_plane() = default;
  virtual ~data_plane() = default;
  data_plane(const data_plane&) = delete;
  data_plane& operator=(const data_plane&) = delete;

  // ---- the policies

  [[nodiscard]] virtual std::string_view transport_name() const noexcept = 0;
  [[nodiscard]] virtual std::string_view integrity_name() const noexcept = 0;
  /// A source that lies cannot give other bytes (concepts/integrity.hpp).
  [[nodiscard]] virtual bool resists_forgery() const noexcept = 0;
  /// A failed copy of a neighbour's bytes has touched none of ours.
  [[nodiscard]] virtual bool copies_cannot_fail() const noexcept = 0;

  // ---- readers

  [[nodiscard]] virtual transport_address address() const = 0;
  /// What readers' capabilities are made with; empty: the transport knows no capabilities.
  [[nodiscard]] virtual const std::string& capability_key() const noexcept = 0;
  /// How many connections were refused for the want of a capability.
  [[nodiscard]] virtual std::uint64_t refused_connections() const noexcept = 0;
  /// What the process's transport says, and no worker of the process has logged yet.
  [[nodiscard]] virtual std::vector<log_line> lines_to_log(time_point now) = 0;
  virtual void cut_off(incarnation reader) noexcept = 0;
  /// The transport can go on as another incarnation (concepts/shared_transport.hpp).
  [[nodiscard]] virtual bool renewable() const noexcept = 0;
  /// Goes on as another incarnation. Pre-condition: it is renewable, and nothing is shown.
  virtual void renew(incarnation self) noexcept = 0;

  // ---- the user's tensors

  virtual void add(tensor_spec tensor, const void* data) = 0;
  [[nodiscard]] virtual std::span<const tensor_spec> tensors() const noexcept = 0;
  [[nodiscard]] virtual std::span<const memory_range> ranges() const noexcept = 0;
  [[nodiscard]] virtual layout build_layout(std::uint64_t chunk_bytes,
                                            const error_context& context) const = 0;
  /// Once; `shape` is borrowed.
  virtual void register_all(const layout& shape, incarnation holder) = 0;
  [[nodiscard]] virtual registration_cost cost() const noexcept = 0;

  // ---- their bytes; after `register_all`

  /// Packs the small tensors and makes the digests. `changed`: nothing but these tensors (by position) has
  /// changed since the last `pack`, so that the other digests are kept. If none are kept, or without
  /// `changed`, it makes them all.
  [[nodiscard]] virtual version_digests pack(version_number version,
                                             std::optional<std::span<const std::size_t>> changed) = 0;
  /// The bytes of this chunk are those that `show` showed last, as version `version`, as far as digests tell.
  [[nodiscard]] virtual bool has_its_digest(version_number version, chunk_index chunk) const = 0;
  /// The next `pack` keeps no digest: it is not known what has changed. Whatever writes to the tensors here
  /// does so by itself.
  virtual void forget_digests() noexcept = 0;
  /// Copies what has arrived of the small tensors to where they are, once per transfer.
  virtual void unpack() = 0;
  /// How many transfers and copies have begun to write to the tensors.
  [[nodiscard]] virtual std::uint64_t transfers() const noexcept = 0;
  /// The same for one tensor, all of whose chunks have arrived, before the others. Nothing to do for a large
  /// one. False: another transfer has begun since the `transfer`-th, whose bytes are gone.
  [[nodiscard]] virtual bool unpack(std::size_t tensor, std::uint64_t transfer) = 0;
  /// Copies all bytes of a worker of the same policies and layout over ours, small tensors included. Throws
  /// `invalid_argument` for a worker of other policies.
  virtual void copy_from(const data_plane& neighbour) = 0;
  [[nodiscard]] virtual std::unique_ptr<pull_driver> begin(pull_order order, transfer_events events) = 0;

  // ---- a version that is filled while readers read it

  /// Shows `version` with none of its bytes.
  virtual void show_open(version_number version, std::uint64_t epoch) = 0;
  /// All bytes of these chunks are there, and do not change any more: digests and shows them. Any thread, of
  /// each chunk once.
  virtual void seal(chunk_run chunks) = 0;
  /// One small tensor into the packed segment. Any thread, of each tensor once.
  virtual void pack_one(std::size_t tensor) = 0;
  /// The digests of everything that was sealed.
  [[nodiscard]] virtual version_digests sealed() const = 0;

  // ---- what readers are shown; after `register_all`

  [[nodiscard]] virtual remote_region control() const = 0;
  /// What a version that is whole is announced with: `control()`, and the segments if they are few.
  [[nodiscard]] virtual readable_memory readable() const = 0;
  /// The table of the version that `show` showed last.
  [[nodiscard]] virtual std::span<const digest128> digests() const noexcept = 0;
  virtual void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) = 0;
  /// Describes the version that `show` showed last once more, while nothing is shown. Returns `readable()`.
  [[nodiscard]] virtual readable_memory describe_held() = 0;
  /// Shows what `describe_held` has described.
  virtual void show_again(version_number version, std::uint64_t epoch) noexcept = 0;
  /// Bytes may change after this returns.
  virtual void raise_epoch(std::uint64_t epoch) noexcept = 0;
  /// The keys given out so far stop working.
  virtual void revoke_all() noexcept = 0;
  /// That takes no time to speak of, for readers either.
  [[nodiscard]] virtual bool revokes_cheaply() const noexcept = 0;

  // ---- other memory of the space

  [[nodiscard]] virtual std::unique_ptr<owned_tensors> allocate(std::span<const tensor_spec> tensors,
                                                                tensor_place where) const = 0;
  /// From now on `allocate` knows one place, the offload space. Before any other call.
  void keep_on_host() noexcept { keeps_on_host_ = true; }
  virtual void copy(std::span<const copy_run> runs) const = 0;
  /// `stream` points to a stream of the space (`stream_of`). See `await_mark` in worker/stream_order.hpp.
  [[nodiscard]] virtual std::chrono::milliseconds await_stream(const void* stream,
                                                               std::chrono::milliseconds timeout,
                                                               const std::function<bool()>& gives_up) = 0;

 protected:
  [[nodiscard]] bool keeps_on_host() const noexcept { return keeps_on_host_; }

 private:
  bool keeps_on_host_ = false;
};

/// What a worker is to its process. A user's object is its first worker and those that the library adds to
/// it: stages, snapshots, offloaded copies.
struct worker_role {
  /// Where the two cannot share a transport, it does not listen at the fixed port of the transport's options.
  bool added = false;
  bool temporary = false;  ///< part of a temporary replica (worker/offloads.hpp)
  /// Others are told to look for what it holds: its updates end when the server knows of them.
  bool awaited = false;
  std::function<void()> dropped{};  ///< that one is not needed any more; must not call the worker
};

/// Takes or starts the transport of one worker. `options` is borrowed and must outlive what is made.
using data_plane_maker = std::function<std::unique_ptr<data_plane>(const worker_options& options,
                                                                   incarnation self, const worker_role&)>;

/// What a worker is made of, besides its options. A worker makes others like itself from it, for stages,
/// snapshots and offloads.
struct worker_policies {
  std::string_view consistency{};  ///< its name; static
  data_plane_maker make_data_plane{};
};

}  // namespace tensorhub::inline TENSORHUB_MODE
