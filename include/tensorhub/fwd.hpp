#pragma once
/// \file fwd.hpp
/// Forward declarations of the public names.

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
struct blake3_128;
struct no_integrity;
struct host_memory;

/// The transport first, then any policies in any order (hub.hpp).
template <typename Transport, typename... Policies>
struct hub;

}  // namespace tensorhub::inline TENSORHUB_MODE
