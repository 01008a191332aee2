#pragma once
/// \file publisher.hpp
/// The trainer's door of a worker: its bytes become versions, in place.

#include "tensorhub/worker.hpp"

namespace tensorhub {

/// Everything is documented at `worker`. A publisher is a source from `publish` until `unpublish`.
template <transport Transport, consistency Consistency = group_consistent, integrity Integrity = xxh3_128>
class publisher : private worker<Transport, Consistency, Integrity> {
  using base = worker<Transport, Consistency, Integrity>;

 public:
  using base::base;
  using typename base::transport_options;

  using base::add;
  using base::cost;
  using base::describe_model;
  using base::held_version;
  using base::join;
  using base::leave;
  using base::list;
  using base::publish;
  using base::self;
  using base::shape;
  using base::unpublish;
  using base::wait;
};

}  // namespace tensorhub
