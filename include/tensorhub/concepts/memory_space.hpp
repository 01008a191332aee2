#pragma once
/// \file memory_space.hpp
/// Concept `memory_space`: a kind of memory that can hold weights.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = memory_space_tag;`
struct memory_space_tag {};

// | expression              | type             | means                                                      |
// |-------------------------|------------------|------------------------------------------------------------|
// | M::concept_tag          | memory_space_tag | the author has read this table                             |
// | M{}                     | M                | default-constructible: every worker has its own            |
// | M::allocation           | movable RAII     | memory of this space; not copyable                         |
// | m.allocate(bytes)       | M::allocation    | zero-filled, aligned to a page; throws `system_failed`     |
// | a.range()               | memory_range     | the allocation's memory with its backing file, if there is |
// |                         |                  | one; noexcept                                              |
// | m.describe(ptr, bytes)  | memory_range     | what is known of any memory of the user: kind, backing     |
// |                         |                  | file. Throws `invalid_argument` if this space cannot hold  |
// |                         |                  | that pointer                                               |
// | m.copy(to, from, bytes) | void             | copies within the space or from/to host; complete on       |
// |                         |                  | return; noexcept; ranges must not overlap                  |
// | M::host_accessible      | constexpr bool   | the CPU may follow pointers of this space                  |
//
// A space may also have `m.allocation_around(range)`: the whole allocation that contains a range (a
// memory_range; the range itself if the allocation is unknown). Tensors of one allocation are then registered
// together, with the gaps between them (transfer/registration.hpp).
//
// A space of device memory (`host_accessible` is false) describes memory with its `device_access`, may
// describe host memory too, and has in addition:
//
// | expression              | type             | means                                                      |
// |-------------------------|------------------|------------------------------------------------------------|
// | m.copy_all(runs)        | bool             | many copies at once (span<const copy_run>), complete on    |
// |                         |                  | return; either end of each may be host memory; false: at   |
// |                         |                  | least one failed; noexcept                                 |
// | M::offload_space        | memory_space     | optional: host memory from which the device copies fast;   |
// |                         |                  | for snapshots, stages and offloads. Default: host_memory   |
// | m.identity(range)       | uint64_t         | optional: another number once the addresses have other     |
// |                         |                  | memory behind them (unmapped and mapped anew), which is    |
// |                         |                  | then registered anew; 0: they never do                     |
// | m.pci_address()         | string           | optional: of the device whose memory a worker that is made |
// |                         |                  | in this thread probably has, for transports whose adapter  |
// |                         |                  | is to be near it; empty: unknown                           |
// | M::stream_type          | regular          | optional: a queue of the user's work on the device         |
// | m.mark(stream)          | M::mark_type     | with it: a mark behind what the stream holds now, whose    |
// |                         |                  | `state()` (lane_state, noexcept) is `done` when all of     |
// |                         |                  | that is; throws `system_failed`                            |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename M>
concept memory_space =
    std::same_as<typename M::concept_tag, memory_space_tag> && std::default_initializable<M> &&
    std::movable<typename M::allocation> && !std::copy_constructible<typename M::allocation> &&
    std::same_as<std::remove_cv_t<decltype(M::host_accessible)>, bool> &&
    requires(M& m, const typename M::allocation& a, void* to, const void* from, std::uint64_t bytes) {
      { m.allocate(bytes) } -> std::same_as<typename M::allocation>;
      { a.range() } noexcept -> std::same_as<memory_range>;
      { m.describe(to, bytes) } -> std::same_as<memory_range>;
      { m.copy(to, from, bytes) } noexcept -> std::same_as<void>;
    };

template <typename M>
concept device_memory_space =
    memory_space<M> && !M::host_accessible && requires(M& m, std::span<const copy_run> runs) {
      { m.copy_all(runs) } noexcept -> std::same_as<bool>;
    };

/// A space whose users order their work by streams.
template <typename M>
concept streaming_memory_space =
    device_memory_space<M> && std::regular<typename M::stream_type> &&
    requires(M& m, const typename M::stream_type& stream, typename M::mark_type& mark) {
      { m.mark(stream) } -> std::same_as<typename M::mark_type>;
      { mark.state() } noexcept -> std::same_as<lane_state>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
