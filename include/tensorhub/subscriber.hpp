#pragma once
/// \file subscriber.hpp
/// The rollout's door of a worker: versions are read into its memory, in place, and served on to others.

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/worker/worker.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Everything is documented at `worker`. A subscriber is a source from a successful `update` until the next
/// one begins.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128,
          memory_space Memory = host_memory>
class subscriber : private worker<Transport, Consistency, Integrity, Memory> {
  using base = worker<Transport, Consistency, Integrity, Memory>;

 public:
  using base::base;
  using typename base::transport_options;
  using update_handle = typename base::update_handle;

  using base::add;
  using base::cost;
  using base::describe_model;
  using base::held_version;
  using base::join;
  using base::leave;
  using base::list;
  using base::newer;
  using base::offloaded_bytes;
  using base::pin;
  using base::release;
  using base::retain;
  using base::self;
  using base::shape;
  using base::statistics;
  using base::stuck;
  using base::unpublish;
  using base::update;
  using base::update_async;
  using base::wait;
  using base::why;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
