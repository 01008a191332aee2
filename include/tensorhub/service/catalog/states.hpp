#pragma once
/// \file states.hpp
/// The states of the catalog's records, each machine with one table of its transitions. `core::move_to` makes
/// every transition, and refuses one that the table does not have.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::catalog_detail {

/// A row of a table: the name of a state, and the states that may follow it.
struct state_row {
  std::string_view name{};
  std::uint32_t next = 0;
};
template <typename... States>
[[nodiscard]] constexpr std::uint32_t to(States... states) noexcept {
  return (0u | ... | (1u << static_cast<std::uint32_t>(states)));
}

/// What a worker's memory holds, as far as its replica and its readers may count on it.
enum class holding : std::uint8_t {
  nothing,
  open,      ///< a version that it still fills
  pending,   ///< all of a version that the other shards of its group have not finished yet
  whole,     ///< all of a version
  withdrawn  ///< what it held when its unpublish began; hidden from readers
};
inline constexpr std::array holding_table{
    state_row{"nothing", to(holding::open, holding::whole)},
    state_row{"open", to(holding::whole, holding::withdrawn, holding::nothing)},
    state_row{"pending", to(holding::whole, holding::withdrawn, holding::nothing)},
    state_row{"whole", to(holding::pending, holding::withdrawn, holding::nothing)},
    state_row{"withdrawn", to(holding::nothing, holding::open, holding::whole)},
};
[[nodiscard]] constexpr const auto& table_of(holding) noexcept {
  return holding_table;
}

/// What an update does to a worker's memory. It is another machine than `holding`: an unpublish may begin
/// after the worker's group has decided, and an update of the group after a shard has finished.
enum class writing : std::uint8_t {
  idle,
  overwriting,  ///< what is held may be gone at any time
  receiving     ///< the same, and readers may have what has arrived
};
inline constexpr std::array writing_table{
    state_row{"idle", to(writing::overwriting, writing::receiving)},
    state_row{"overwriting", to(writing::receiving, writing::idle)},
    state_row{"receiving", to(writing::overwriting, writing::idle)},
};
[[nodiscard]] constexpr const auto& table_of(writing) noexcept {
  return writing_table;
}

/// What the server knows of a worker's life. Each message of the worker makes it `heard` again.
enum class liveness : std::uint8_t {
  heard,
  suspect,      ///< a reader has lost it
  unreachable,  ///< its connection to the server is broken
  missing,      ///< both: it is dead unless it is heard soon
  gone          ///< it is being removed from all records
};
inline constexpr std::array liveness_table{
    state_row{"heard", to(liveness::suspect, liveness::unreachable, liveness::gone)},
    state_row{"suspect", to(liveness::heard, liveness::missing, liveness::gone)},
    state_row{"unreachable", to(liveness::heard, liveness::missing, liveness::gone)},
    state_row{"missing", to(liveness::heard, liveness::gone)},
    state_row{"gone", to()},
};
[[nodiscard]] constexpr const auto& table_of(liveness) noexcept {
  return liveness_table;
}

/// The life of a lease, from its assignment to its end. An ended lease has no record.
enum class lease_stage : std::uint8_t {
  reserved,    ///< its reader has not been told yet
  active,      ///< its reader knows it
  moving,      ///< its reader has been told to release it; or, before it was told of it, another is sought
  cutting_off  ///< its reader was declared dead; ends when the source confirms the cut-off
};
inline constexpr std::array lease_table{
    state_row{"reserved", to(lease_stage::active, lease_stage::moving)},
    state_row{"active", to(lease_stage::moving, lease_stage::cutting_off)},
    state_row{"moving", to(lease_stage::cutting_off, lease_stage::reserved)},
    state_row{"cutting off", to()},
};
[[nodiscard]] constexpr const auto& table_of(lease_stage) noexcept {
  return lease_table;
}

/// The course of a group operation.
enum class operation_stage : std::uint8_t {
  undecided,
  decided,    ///< every shard has a source, or the version itself
  ended,      ///< with success
  abandoned,  ///< closed before a decision
  failed      ///< failed after it
};
inline constexpr std::array operation_stage_table{
    state_row{"undecided", to(operation_stage::decided, operation_stage::ended, operation_stage::abandoned)},
    state_row{"decided", to(operation_stage::ended, operation_stage::failed)},
    state_row{"ended", to()},
    state_row{"abandoned", to()},
    state_row{"failed", to()},
};
[[nodiscard]] constexpr const auto& table_of(operation_stage) noexcept {
  return operation_stage_table;
}

/// The part of one shard in an operation.
enum class phase : std::uint8_t {
  absent,    ///< it has not called
  waiting,   ///< for the decision
  assigned,  ///< it has sources
  finished,
  failed,  ///< bytes of its memory may have changed
  intact   ///< failed; no byte was overwritten, or found to be another one
};
inline constexpr std::array phase_table{
    state_row{"absent", to(phase::waiting, phase::assigned, phase::finished, phase::failed, phase::intact)},
    state_row{"waiting", to(phase::assigned, phase::finished, phase::failed, phase::intact)},
    state_row{"assigned", to(phase::finished, phase::failed, phase::intact)},
    state_row{"finished", to(phase::failed, phase::intact)},
    state_row{"failed", to()},
    state_row{"intact", to()},
};
[[nodiscard]] constexpr const auto& table_of(phase) noexcept {
  return phase_table;
}

template <typename State>
[[nodiscard]] constexpr bool may_follow(State from, State next) noexcept {
  return (table_of(from)[static_cast<std::size_t>(from)].next & to(next)) != 0;
}
template <typename State>
[[nodiscard]] constexpr std::string_view name_of(State state) noexcept {
  return table_of(state)[static_cast<std::size_t>(state)].name;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::catalog_detail
