#pragma once
/// \file fwd.hpp
/// Forward declarations of the public templates; the only place with default template arguments of the hub.

#include <concepts>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class error;
class layout;
struct location;
struct tensor_spec;
struct version_number;
struct version_selector;

class nearest_source;
class least_loaded;
class group_consistent;
class independent;
class bounded_staleness;
struct xxh3_128;
struct no_integrity;
struct host_memory;

template <typename Transport, typename Scheduler = nearest_source, typename Consistency = group_consistent,
          typename Integrity = xxh3_128, typename Memory = host_memory>
struct hub;

}  // namespace tensorhub::inline TENSORHUB_MODE
