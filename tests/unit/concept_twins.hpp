#pragma once
/// \file concept_twins.hpp
/// Broken twins of the archetypes. Each twin hides one member of its archetype by a member with another tag,
/// another return type or without noexcept. A `plain_` twin hides nothing and is accepted, so the concept
/// refuses each of the others for its one flaw. The compiler decides all of it; nothing here is defined.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "support/archetypes.hpp"

namespace concept_twins {

using namespace tensorhub;
using namespace tensorhub::testing;

struct other_tag {};

// ---- clock -----------------------------------------------------------------------------------------------

struct plain_clock : clock_archetype {};
static_assert(tensorhub::clock<plain_clock>);
struct clock_of_other_tag : clock_archetype {
  using concept_tag = other_tag;
};
static_assert(!tensorhub::clock<clock_of_other_tag>);
struct now_may_throw : clock_archetype {
  time_point now() const;
};
static_assert(!tensorhub::clock<now_may_throw>);
struct now_gives_a_number : clock_archetype {
  std::int64_t now() const noexcept;
};
static_assert(!tensorhub::clock<now_gives_a_number>);

// ---- scheduler -------------------------------------------------------------------------------------------

struct plain_scheduler : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
};
static_assert(scheduler<plain_scheduler>);
struct scheduler_of_other_tag : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
  using concept_tag = other_tag;
};
static_assert(!scheduler<scheduler_of_other_tag>);
struct limits_may_throw : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
  source_limits limits() const;
};
static_assert(!scheduler<limits_may_throw>);
struct limits_gives_a_number : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
  std::uint32_t limits() const noexcept;
};
static_assert(!scheduler<limits_gives_a_number>);
struct choose_may_throw : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
  source_choice choose(const source_query&, std::span<const source_candidate>);
};
static_assert(!scheduler<choose_may_throw>);
struct choose_gives_an_index : scheduler_archetype {
  using scheduler_archetype::scheduler_archetype;
  std::optional<std::size_t> choose(const source_query&, std::span<const source_candidate>) noexcept;
};
static_assert(!scheduler<choose_gives_an_index>);

// ---- consistency -----------------------------------------------------------------------------------------

struct plain_consistency : consistency_archetype {
  using consistency_archetype::consistency_archetype;
};
static_assert(consistency<plain_consistency>);
struct consistency_of_other_tag : consistency_archetype {
  using consistency_archetype::consistency_archetype;
  using concept_tag = other_tag;
};
static_assert(!consistency<consistency_of_other_tag>);
struct decides_per_group_is_a_number : consistency_archetype {
  using consistency_archetype::consistency_archetype;
  static constexpr int decides_per_group = 0;
};
static_assert(!consistency<decides_per_group_is_a_number>);
struct completes_per_group_is_a_number : consistency_archetype {
  using consistency_archetype::consistency_archetype;
  static constexpr int completes_per_group = 0;
};
static_assert(!consistency<completes_per_group_is_a_number>);
struct decide_may_throw : consistency_archetype {
  using consistency_archetype::consistency_archetype;
  version_decision decide(const version_selector&, const version_view&) const;
};
static_assert(!consistency<decide_may_throw>);
struct decide_gives_a_version : consistency_archetype {
  using consistency_archetype::consistency_archetype;
  version_number decide(const version_selector&, const version_view&) const noexcept;
};
static_assert(!consistency<decide_gives_a_version>);

// ---- integrity -------------------------------------------------------------------------------------------

struct plain_integrity : integrity_archetype {};
static_assert(integrity<plain_integrity>);
struct integrity_of_other_tag : integrity_archetype {
  using concept_tag = other_tag;
};
static_assert(!integrity<integrity_of_other_tag>);
struct enabled_is_a_number : integrity_archetype {
  static constexpr int enabled = 1;
};
static_assert(!integrity<enabled_is_a_number>);
struct bind_may_throw : integrity_archetype {
  static digest_seeds bind(std::string_view, version_number, shard_of);
};
static_assert(!integrity<bind_may_throw>);
struct bind_gives_one_seed : integrity_archetype {
  static std::uint64_t bind(std::string_view, version_number, shard_of) noexcept;
};
static_assert(!integrity<bind_gives_one_seed>);
struct bind_gives_a_digest : integrity_archetype {
  static digest128 bind(std::string_view, version_number, shard_of) noexcept;
};
static_assert(!integrity<bind_gives_a_digest>);
struct chunk_digest_may_throw : integrity_archetype {
  static digest128 chunk_digest(std::uint64_t, std::uint64_t, std::span<const std::byte>);
};
static_assert(!integrity<chunk_digest_may_throw>);
struct chunk_digest_gives_a_number : integrity_archetype {
  static std::uint64_t chunk_digest(std::uint64_t, std::uint64_t, std::span<const std::byte>) noexcept;
};
static_assert(!integrity<chunk_digest_gives_a_number>);
struct root_may_throw : integrity_archetype {
  static digest128 root(std::uint64_t, std::span<const digest128>);
};
static_assert(!integrity<root_may_throw>);
struct root_gives_a_number : integrity_archetype {
  static std::uint64_t root(std::uint64_t, std::span<const digest128>) noexcept;
};
static_assert(!integrity<root_gives_a_number>);

// ---- memory_space ----------------------------------------------------------------------------------------

template <typename Allocation = memory_space_archetype::allocation>
struct space_of : memory_space_archetype {
  using allocation = Allocation;
  Allocation allocate(std::uint64_t);
};
static_assert(memory_space<space_of<>>);

struct memory_space_of_other_tag : space_of<> {
  using concept_tag = other_tag;
};
static_assert(!memory_space<memory_space_of_other_tag>);
struct host_accessible_is_a_number : space_of<> {
  static constexpr int host_accessible = 1;
};
static_assert(!memory_space<host_accessible_is_a_number>);
struct allocate_gives_a_pointer : space_of<> {
  void* allocate(std::uint64_t);
};
static_assert(!memory_space<allocate_gives_a_pointer>);
struct describe_gives_a_bool : space_of<> {
  bool describe(void*, std::uint64_t);
};
static_assert(!memory_space<describe_gives_a_bool>);
struct copy_may_throw : space_of<> {
  void copy(void*, const void*, std::uint64_t);
};
static_assert(!memory_space<copy_may_throw>);
struct copy_gives_a_bool : space_of<> {
  bool copy(void*, const void*, std::uint64_t) noexcept;
};
static_assert(!memory_space<copy_gives_a_bool>);

struct plain_allocation : memory_space_archetype::allocation {};
static_assert(memory_space<space_of<plain_allocation>>);
struct allocation_range_may_throw : memory_space_archetype::allocation {
  memory_range range() const;
};
static_assert(!memory_space<space_of<allocation_range_may_throw>>);
struct allocation_range_is_a_pointer : memory_space_archetype::allocation {
  void* range() const noexcept;
};
static_assert(!memory_space<space_of<allocation_range_is_a_pointer>>);

// ---- transport -------------------------------------------------------------------------------------------

using archetype_region = transport_archetype::memory_region;
using archetype_queue = transport_archetype::queue;
using archetype_endpoint = transport_archetype::endpoint;

template <typename Region = archetype_region, typename Queue = archetype_queue,
          typename Endpoint = archetype_endpoint>
struct transport_of : transport_archetype {
  using transport_archetype::transport_archetype;
  using memory_region = Region;
  using queue = Queue;
  using endpoint = Endpoint;
  std::vector<Region> register_memory(std::span<const memory_range>, region_access);
  Queue make_queue(std::size_t);
  Endpoint connect(Queue&, const transport_address&, incarnation, duration);
};
static_assert(transport<transport_of<>>);

struct transport_of_other_tag : transport_of<> {
  using transport_of::transport_of;
  using concept_tag = other_tag;
};
static_assert(!transport<transport_of_other_tag>);
struct capabilities_are_a_number : transport_of<> {
  using transport_of::transport_of;
  static constexpr int capabilities = 0;
};
static_assert(!transport<capabilities_are_a_number>);
struct address_gives_text : transport_of<> {
  using transport_of::transport_of;
  std::string address() const;
};
static_assert(!transport<address_gives_text>);
struct register_memory_gives_one : transport_of<> {
  using transport_of::transport_of;
  archetype_region register_memory(std::span<const memory_range>, region_access);
};
static_assert(!transport<register_memory_gives_one>);
struct registered_bytes_may_throw : transport_of<> {
  using transport_of::transport_of;
  std::uint64_t registered_bytes() const;
};
static_assert(!transport<registered_bytes_may_throw>);
struct registered_bytes_is_signed : transport_of<> {
  using transport_of::transport_of;
  std::int64_t registered_bytes() const noexcept;
};
static_assert(!transport<registered_bytes_is_signed>);
struct describe_gives_a_key : transport_of<> {
  using transport_of::transport_of;
  remote_key describe(const archetype_region&) const;
};
static_assert(!transport<describe_gives_a_key>);
struct revoke_may_throw : transport_of<> {
  using transport_of::transport_of;
  void revoke(archetype_region&);
};
static_assert(!transport<revoke_may_throw>);
struct revoke_gives_a_bool : transport_of<> {
  using transport_of::transport_of;
  bool revoke(archetype_region&) noexcept;
};
static_assert(!transport<revoke_gives_a_bool>);
struct cut_off_may_throw : transport_of<> {
  using transport_of::transport_of;
  void cut_off(incarnation);
};
static_assert(!transport<cut_off_may_throw>);
struct cut_off_gives_a_bool : transport_of<> {
  using transport_of::transport_of;
  bool cut_off(incarnation) noexcept;
};
static_assert(!transport<cut_off_gives_a_bool>);
struct make_queue_gives_a_pointer : transport_of<> {
  using transport_of::transport_of;
  archetype_queue* make_queue(std::size_t);
};
static_assert(!transport<make_queue_gives_a_pointer>);
struct connect_gives_a_pointer : transport_of<> {
  using transport_of::transport_of;
  archetype_endpoint* connect(archetype_queue&, const transport_address&, incarnation, duration);
};
static_assert(!transport<connect_gives_a_pointer>);

struct plain_region : archetype_region {};
struct plain_queue : archetype_queue {};
struct plain_endpoint : archetype_endpoint {};
static_assert(transport<transport_of<plain_region, plain_queue, plain_endpoint>>);
struct range_may_throw : archetype_region {
  memory_range range() const;
};
static_assert(!transport<transport_of<range_may_throw>>);
struct range_is_a_pointer : archetype_region {
  void* range() const noexcept;
};
static_assert(!transport<transport_of<range_is_a_pointer>>);

struct post_read_may_throw : archetype_queue {
  post_result post_read(archetype_endpoint&, const archetype_region&, std::uint64_t, const remote_slice&,
                        request_id);
};
static_assert(!transport<transport_of<archetype_region, post_read_may_throw>>);
struct post_read_gives_a_bool : archetype_queue {
  bool post_read(archetype_endpoint&, const archetype_region&, std::uint64_t, const remote_slice&,
                 request_id) noexcept;
};
static_assert(!transport<transport_of<archetype_region, post_read_gives_a_bool>>);
struct poll_may_throw : archetype_queue {
  std::size_t poll(std::span<completion>);
};
static_assert(!transport<transport_of<archetype_region, poll_may_throw>>);
struct poll_gives_a_bool : archetype_queue {
  bool poll(std::span<completion>) noexcept;
};
static_assert(!transport<transport_of<archetype_region, poll_gives_a_bool>>);
struct wait_may_throw : archetype_queue {
  void wait(duration);
};
static_assert(!transport<transport_of<archetype_region, wait_may_throw>>);
struct wait_gives_a_bool : archetype_queue {
  bool wait(duration) noexcept;
};
static_assert(!transport<transport_of<archetype_region, wait_gives_a_bool>>);
struct wake_may_throw : archetype_queue {
  void wake();
};
static_assert(!transport<transport_of<archetype_region, wake_may_throw>>);
struct wake_gives_a_bool : archetype_queue {
  bool wake() noexcept;
};
static_assert(!transport<transport_of<archetype_region, wake_gives_a_bool>>);
struct outstanding_may_throw : archetype_queue {
  std::size_t outstanding() const;
};
static_assert(!transport<transport_of<archetype_region, outstanding_may_throw>>);
struct outstanding_is_signed : archetype_queue {
  std::ptrdiff_t outstanding() const noexcept;
};
static_assert(!transport<transport_of<archetype_region, outstanding_is_signed>>);

struct peer_may_throw : archetype_endpoint {
  incarnation peer() const;
};
static_assert(!transport<transport_of<archetype_region, archetype_queue, peer_may_throw>>);
struct peer_is_an_address : archetype_endpoint {
  transport_address peer() const noexcept;
};
static_assert(!transport<transport_of<archetype_region, archetype_queue, peer_is_an_address>>);
struct usable_may_throw : archetype_endpoint {
  bool usable() const;
};
static_assert(!transport<transport_of<archetype_region, archetype_queue, usable_may_throw>>);
struct usable_is_a_number : archetype_endpoint {
  int usable() const noexcept;
};
static_assert(!transport<transport_of<archetype_region, archetype_queue, usable_is_a_number>>);

}  // namespace concept_twins
