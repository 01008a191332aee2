#pragma once
/// \file catalog_of.hpp
/// A catalog with its policies as type arguments, for drivers that construct a catalog by its type.

#include <utility>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/service/catalog.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

template <scheduler Scheduler = nearest_source, consistency Consistency = group_consistent>
class catalog_of : public catalog {
 public:
  catalog_of(catalog_options options, server_epoch epoch,
             Scheduler scheduler = Scheduler{typename Scheduler::options{}},
             Consistency consistency = Consistency{typename Consistency::options{}})
      : catalog{std::move(options), epoch, std::move(scheduler), std::move(consistency)} {}
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
