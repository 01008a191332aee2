#pragma once
/// \file memory.hpp
/// A worker's tensors together with the control block that tells readers what lies in them.
///
/// The control block lies in memory of its own that the CPU can write, also where the tensors are a device's;
/// like them in a file where the memory space has files, so that readers of this machine need no leave to
/// attach to this process.
///
/// Thread safety: `add_chunk` for any thread; everything else is serialised by the worker. Before
/// `register_all` nothing is shown and nothing needs to be hidden.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/shard_memory.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/worker/control_writer.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <transport Transport, memory_space Memory>
class worker_memory {
 public:
  explicit worker_memory(Transport& through) : transport_{&through}, shard_{through} {}

  /// Registers the tensors and a control block of this shape, which must stay. Throws what the memory space
  /// and the transport throw. Once.
  void register_all(const layout& shape, incarnation holder) {
    layout_ = &shape;
    shard_.register_all(shape);
    control_memory_.emplace(control_space{}.allocate(control_block::words_for(shape) * 8));
    memory_range range = control_memory_->range();
    control_.emplace(control_block{
        holder, shape,
        std::span{reinterpret_cast<std::uint64_t*>(range.data), control_block::words_for(shape)}});
    range.bytes = control_->memory().size();
    regions_ = transport_->register_memory(std::span{&range, 1}, region_access::remote_read);
  }

  [[nodiscard]] shard_memory<Transport, Memory>& shard() noexcept { return shard_; }
  [[nodiscard]] const shard_memory<Transport, Memory>& shard() const noexcept { return shard_; }

  /// What a reader needs to read the control block, which says the rest.
  [[nodiscard]] remote_region control() const { return transport_->describe(regions_.front()); }
  /// The same, and the tensors' segments if they are few.
  [[nodiscard]] readable_memory readable() const { return {control(), regions()}; }
  /// The table of the version that `show` showed last.
  [[nodiscard]] std::span<const digest128> digests() const noexcept { return control_->held_digests(); }

  /// Fills the control block and shows the version. Table empty: integrity is off.
  void show(version_number version, std::uint64_t epoch, std::span<const digest128> table) {
    control_->show(version, epoch, table, regions());
  }
  /// The same of a version of which no chunk is here yet.
  void show_receiving(version_number version, std::uint64_t epoch, std::span<const digest128> table) {
    control_->show_receiving(version, epoch, table, regions());
  }
  /// Describes the version that `show` showed last once more, with the keys of now; the block shows nothing.
  /// Returns `readable()`.
  [[nodiscard]] readable_memory describe_held() {
    control_->describe_held(regions());
    return readable();
  }
  /// The process goes on as another incarnation; the block shows nothing.
  void renew(incarnation self) noexcept {
    if (control_) control_->set_holder(self);
  }
  void add_chunk(chunk_index chunk) noexcept { control_->add_chunk(chunk); }
  void add_chunk(chunk_index chunk, digest128 digest) noexcept { control_->add_chunk(chunk, digest); }
  void set_digests(std::span<const digest128> table) noexcept { control_->set_digests(table); }
  /// Shows what `describe_held` has described.
  void show_again(version_number version, std::uint64_t epoch) noexcept {
    if (control_) control_->show_again(version, epoch);
  }
  /// Bytes may change after this returns.
  void raise_epoch(std::uint64_t epoch) noexcept {
    if (control_) control_->raise_epoch(epoch);
  }
  /// Keys given out so far stop working: first those of the control block, without which no byte counts,
  /// then those of the tensors, region by region.
  void revoke_all() noexcept {
    for (region_type& region : regions_) transport_->revoke(region);
    shard_.revoke_all();
  }

 private:
  using region_type = typename Transport::memory_region;
  /// The CPU writes the control block.
  using control_space = std::conditional_t<Memory::host_accessible, Memory, host_memory>;

  [[nodiscard]] std::vector<remote_region> regions() const {
    std::vector<remote_region> out;
    for (std::size_t i = 0; i < layout_->segments().size(); ++i) out.push_back(shard_.remote(i));
    return out;
  }

  Transport* transport_;
  shard_memory<Transport, Memory> shard_;
  const layout* layout_ = nullptr;
  std::optional<typename control_space::allocation> control_memory_;
  std::optional<control_writer> control_;
  std::vector<region_type> regions_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
