#pragma once
/// \file transport.hpp
/// Broken twins of `transport`.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "twin.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing::twins {

enum class transport_flaw {
  none,
  no_tag,
  wrong_tag,
  no_name,
  name_is_no_text,
  no_capabilities,
  capabilities_are_a_number,
  no_options,
  options_have_no_default,
  not_told_its_incarnation,
  no_address,
  address_is_text,
  address_is_not_const,
  no_region,
  region_is_copyable,
  region_is_immovable,
  region_destructor_may_throw,
  no_register_memory,
  register_memory_gives_one,
  register_memory_changes_the_ranges,
  no_range,
  range_is_a_pointer,
  range_may_throw,
  range_is_not_const,
  no_registered_bytes,
  registered_bytes_is_signed,
  registered_bytes_may_throw,
  registered_bytes_is_not_const,
  no_describe,
  describe_gives_a_key,
  describe_is_not_const,
  describe_changes_the_region,
  no_revoke,
  revoke_gives_a_bool,
  revoke_may_throw,
  no_cut_off,
  cut_off_gives_a_bool,
  cut_off_may_throw,
  no_queue,
  queue_is_copyable,
  queue_is_immovable,
  no_make_queue,
  make_queue_gives_a_pointer,
  no_endpoint,
  endpoint_is_copyable,
  endpoint_is_immovable,
  no_connect,
  connect_gives_a_pointer,
  connect_has_no_timeout,
  connect_does_not_ask_who,
  no_peer,
  peer_is_an_address,
  peer_may_throw,
  peer_is_not_const,
  no_usable,
  usable_is_a_number,
  usable_may_throw,
  usable_is_not_const,
  no_post_read,
  post_read_gives_a_bool,
  post_read_may_throw,
  post_read_changes_the_region,
  post_read_has_no_id,
  no_poll,
  poll_gives_a_bool,
  poll_may_throw,
  no_wait,
  wait_gives_a_bool,
  wait_may_throw,
  wait_has_no_timeout,
  no_wake,
  wake_gives_a_bool,
  wake_may_throw,
  no_outstanding,
  outstanding_is_signed,
  outstanding_may_throw,
  outstanding_is_not_const,
  count,
};

template <typename Type>
struct with_capabilities {
  static constexpr Type capabilities{};
};
template <typename Type>
struct with_region {
  using memory_region = Type;
};
template <typename Type>
struct with_queue {
  using queue = Type;
};
template <typename Type>
struct with_endpoint {
  using endpoint = Type;
};

/// The ownership of a part, unless it is one of two flawed ones.
template <bool Copyable, bool Immovable>
using ownership = unless<Copyable, unless<Immovable, movable_only, immovable>, copyable>;

template <transport_flaw F>
struct twin_region
    : ownership<F == transport_flaw::region_is_copyable, F == transport_flaw::region_is_immovable> {
  using flaw = transport_flaw;
  twin_region(const twin_region&) = default;
  twin_region(twin_region&&) = default;
  twin_region& operator=(const twin_region&) = default;
  twin_region& operator=(twin_region&&) = default;
  ~twin_region() noexcept(F != flaw::region_destructor_may_throw);

  using result = unless<F == flaw::range_is_a_pointer, memory_range, void*>;
  result range() const
      noexcept(F != flaw::range_may_throw) requires(F != flaw::no_range && F != flaw::range_is_not_const);
  result range() noexcept requires(F == flaw::range_is_not_const);
};

template <transport_flaw F>
struct twin_endpoint
    : ownership<F == transport_flaw::endpoint_is_copyable, F == transport_flaw::endpoint_is_immovable> {
  using flaw = transport_flaw;
  using peer_result = unless<F == flaw::peer_is_an_address, incarnation, transport_address>;
  peer_result peer() const
      noexcept(F != flaw::peer_may_throw) requires(F != flaw::no_peer && F != flaw::peer_is_not_const);
  peer_result peer() noexcept requires(F == flaw::peer_is_not_const);

  using usable_result = unless<F == flaw::usable_is_a_number, bool, int>;
  usable_result usable() const
      noexcept(F != flaw::usable_may_throw) requires(F != flaw::no_usable && F != flaw::usable_is_not_const);
  usable_result usable() noexcept requires(F == flaw::usable_is_not_const);
};

template <transport_flaw F>
struct twin_queue
    : ownership<F == transport_flaw::queue_is_copyable, F == transport_flaw::queue_is_immovable> {
  using flaw = transport_flaw;
  using into = unless<F == flaw::post_read_changes_the_region, const twin_region<F>&, twin_region<F>&>;
  using post_answer = unless<F == flaw::post_read_gives_a_bool, post_result, bool>;
  post_answer post_read(twin_endpoint<F>&, into, std::uint64_t, const remote_slice&, request_id) noexcept(
      F != flaw::post_read_may_throw) requires(F != flaw::no_post_read && F != flaw::post_read_has_no_id);
  post_answer post_read(twin_endpoint<F>&, into, std::uint64_t, const remote_slice&) noexcept
      requires(F == flaw::post_read_has_no_id);

  unless<F == flaw::poll_gives_a_bool, std::size_t, bool> poll(std::span<completion>) noexcept(
      F != flaw::poll_may_throw) requires(F != flaw::no_poll);

  using wait_result = unless<F == flaw::wait_gives_a_bool, void, bool>;
  wait_result wait(duration) noexcept(F != flaw::wait_may_throw) requires(F != flaw::no_wait &&
                                                                          F != flaw::wait_has_no_timeout);
  wait_result wait() noexcept requires(F == flaw::wait_has_no_timeout);

  unless<F == flaw::wake_gives_a_bool, void, bool> wake() noexcept(F != flaw::wake_may_throw) requires(
      F != flaw::no_wake);

  using count_result = unless<F == flaw::outstanding_is_signed, std::size_t, std::ptrdiff_t>;
  count_result outstanding() const
      noexcept(F != flaw::outstanding_may_throw) requires(F != flaw::no_outstanding &&
                                                          F != flaw::outstanding_is_not_const);
  count_result outstanding() noexcept requires(F == flaw::outstanding_is_not_const);
};

template <transport_flaw F>
struct transport_twin
    : unless<F == transport_flaw::no_tag,
             with_tag<unless<F == transport_flaw::wrong_tag, transport_tag, some_tag>>, nothing<>>,
      unless<F == transport_flaw::no_name,
             with_name<unless<F == transport_flaw::name_is_no_text, std::string_view, no_text>>, nothing<1>>,
      unless<F == transport_flaw::no_capabilities,
             with_capabilities<
                 unless<F == transport_flaw::capabilities_are_a_number, transport_capabilities, int>>,
             nothing<2>>,
      unless<F == transport_flaw::no_options,
             with_options<
                 unless<F == transport_flaw::options_have_no_default, plain_options, demanding_options>>,
             nothing<3>>,
      unless<F == transport_flaw::no_region, with_region<twin_region<F>>, nothing<4>>,
      unless<F == transport_flaw::no_queue, with_queue<twin_queue<F>>, nothing<5>>,
      unless<F == transport_flaw::no_endpoint, with_endpoint<twin_endpoint<F>>, nothing<6>> {
  using flaw = transport_flaw;
  using region_type = twin_region<F>;
  using queue_type = twin_queue<F>;
  using endpoint_type = twin_endpoint<F>;

  transport_twin(plain_options, incarnation) requires(F != flaw::not_told_its_incarnation);
  transport_twin(demanding_options, incarnation);
  explicit transport_twin(plain_options);

  using address_result = unless<F == flaw::address_is_text, transport_address, std::string>;
  address_result address() const requires(F != flaw::no_address && F != flaw::address_is_not_const);
  address_result address() requires(F == flaw::address_is_not_const);

  using ranges = unless<F == flaw::register_memory_changes_the_ranges, std::span<const memory_range>,
                        std::span<memory_range>>;
  unless<F == flaw::register_memory_gives_one, std::vector<region_type>, region_type> register_memory(
      ranges, region_access) requires(F != flaw::no_register_memory);

  using bytes_result = unless<F == flaw::registered_bytes_is_signed, std::uint64_t, std::int64_t>;
  bytes_result registered_bytes() const
      noexcept(F != flaw::registered_bytes_may_throw) requires(F != flaw::no_registered_bytes &&
                                                               F != flaw::registered_bytes_is_not_const);
  bytes_result registered_bytes() noexcept requires(F == flaw::registered_bytes_is_not_const);

  using described = unless<F == flaw::describe_gives_a_key, remote_region, remote_key>;
  using region = unless<F == flaw::describe_changes_the_region, const region_type&, region_type&>;
  described describe(region) const requires(F != flaw::no_describe && F != flaw::describe_is_not_const);
  described describe(region) requires(F == flaw::describe_is_not_const);

  unless<F == flaw::revoke_gives_a_bool, void, bool> revoke(region_type&) noexcept(
      F != flaw::revoke_may_throw) requires(F != flaw::no_revoke);
  unless<F == flaw::cut_off_gives_a_bool, void, bool> cut_off(incarnation) noexcept(
      F != flaw::cut_off_may_throw) requires(F != flaw::no_cut_off);

  unless<F == flaw::make_queue_gives_a_pointer, queue_type, queue_type*> make_queue(std::size_t) requires(
      F != flaw::no_make_queue);

  using connected = unless<F == flaw::connect_gives_a_pointer, endpoint_type, endpoint_type*>;
  connected connect(queue_type&, const transport_address&, incarnation,
                    duration) requires(F != flaw::no_connect && F != flaw::connect_has_no_timeout &&
                                       F != flaw::connect_does_not_ask_who);
  connected connect(queue_type&, const transport_address&,
                    incarnation) requires(F == flaw::connect_has_no_timeout);
  connected connect(queue_type&, const transport_address&,
                    duration) requires(F == flaw::connect_does_not_ask_who);
};

struct transport_refused {
  template <transport_flaw F>
  static consteval bool check() {
    static_assert(!transport<transport_twin<F>>, "a broken transport was accepted");
    return true;
  }
};
static_assert(transport<transport_twin<transport_flaw::none>>);
static_assert(every_flaw_is_refused<transport_flaw, transport_refused>());

}  // namespace tensorhub::inline TENSORHUB_MODE::testing::twins
