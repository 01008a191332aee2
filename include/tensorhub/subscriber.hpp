#pragma once
/// \file subscriber.hpp
/// The rollout's door of a worker: versions are read into its memory, in place, and served on to others.
///
/// Thread safety and errors: as worker/worker.hpp says.

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/fwd.hpp"
#include "tensorhub/types/element.hpp"
#include "tensorhub/worker/add_elements.hpp"
#include "tensorhub/worker/policy_data_plane.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// What a subscriber of any policies can do. Everything is documented at `worker`. A subscriber is a source
/// from a successful `update` until the next one begins.
class any_subscriber : private worker {
 public:
  using update_handle = tensorhub::update_handle;

  using worker::cost;
  using worker::describe_model;
  using worker::held_version;
  using worker::interrupt;
  using worker::join;
  using worker::keep_alive;
  using worker::leave;
  using worker::list;
  using worker::newer;
  using worker::offloaded_bytes;
  using worker::pin;
  using worker::release;
  using worker::retain;
  using worker::self;
  using worker::shape;
  using worker::statistics;
  using worker::stuck;
  using worker::unpublish;
  using worker::update;
  using worker::update_async;
  using worker::wait;
  using worker::why;

  /// As at `worker`; the memory is written.
  void add(std::string name, void* data, std::span<const std::uint64_t> dimensions, dtype type) {
    worker::add(std::move(name), data, dimensions, type);
  }
  void add(std::string name, void* data, std::initializer_list<std::uint64_t> dimensions, dtype type) {
    worker::add(std::move(name), data, dimensions, type);
  }
  /// Of a vector, an array or a span, whose element type says what they are; without dimensions in one.
  template <writable_elements Range>
  void add(std::string name, Range&& values, std::initializer_list<std::uint64_t> dimensions = {}) {
    detail::add_elements(*this, std::move(name), values, dimensions);
  }

 protected:
  using worker::await_stream;
  any_subscriber(worker_options options, worker_policies policies)
      : worker{std::move(options), std::move(policies)} {}
  ~any_subscriber() = default;
};

/// A subscriber of these policies.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class subscriber : public any_subscriber {
 public:
  using transport_options = typename Transport::options;

  explicit subscriber(worker_options options, transport_options through = {})
      : any_subscriber{std::move(options),
                       policies_of<Transport, Consistency, Integrity, Memory>(std::move(through))} {}

  using any_subscriber::update;
  using any_subscriber::update_async;
  /// Tensors on a device need their stream, or `all_done` (worker/stream_order.hpp).
  update_report update(version_selector = latest, std::chrono::milliseconds = {},  //
                       update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_report update(version_selector, retry_t, std::chrono::milliseconds = {},  //
                       update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_handle update_async(version_selector = latest, std::chrono::milliseconds = {},  //
                             update_reach = update_reach::anywhere)                      //
      requires streaming_memory_space<Memory>
  = delete;
  update_report update(version_selector selector, all_done_t,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_subscriber::update(selector, timeout, reach);
  }
  update_report update(version_selector selector, retry_t, all_done_t,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_subscriber::update(selector, retry, timeout, reach);
  }
  [[nodiscard]] update_handle update_async(version_selector selector, all_done_t,
                                           std::chrono::milliseconds timeout = defaults::update_timeout,
                                           update_reach reach = update_reach::anywhere) {
    return any_subscriber::update_async(selector, timeout, reach);
  }
  /// After what the stream holds now is done (worker/stream_order.hpp).
  update_report update(version_selector selector, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_subscriber::update(selector, await_stream(&stream, timeout), reach);
  }
  update_report update(version_selector selector, retry_t, const stream_of<Memory>& stream,
                       std::chrono::milliseconds timeout = defaults::update_timeout,
                       update_reach reach = update_reach::anywhere) {
    return any_subscriber::update(selector, retry, await_stream(&stream, timeout), reach);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE
