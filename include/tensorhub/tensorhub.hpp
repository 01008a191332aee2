#pragma once
/// \file tensorhub.hpp
/// Includes the whole core library but the reference server (<tensorhub/server.hpp>), which workers do not
/// need. Transports are included separately, for example <tensorhub/transports/tcp.hpp>.

#include "tensorhub/config.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/hub.hpp"
#include "tensorhub/key_files.hpp"
#include "tensorhub/leave_on_signal.hpp"
#include "tensorhub/memory/host.hpp"
#include "tensorhub/policy/consistency/bounded_staleness.hpp"
#include "tensorhub/policy/consistency/group_consistent.hpp"
#include "tensorhub/policy/consistency/independent.hpp"
#include "tensorhub/policy/integrity/none.hpp"
#include "tensorhub/policy/integrity/xxh3_128.hpp"
#include "tensorhub/policy/scheduler/least_loaded.hpp"
#include "tensorhub/policy/scheduler/nearest_source.hpp"
#include "tensorhub/publisher.hpp"
#include "tensorhub/subscriber.hpp"
#include "tensorhub/transfer/first_of.hpp"
#include "tensorhub/version.hpp"
#include "tensorhub/worker/snapshots.hpp"
