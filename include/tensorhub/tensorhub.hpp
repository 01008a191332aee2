#pragma once
/// \file tensorhub.hpp
/// Includes what a worker needs. Included by their own names are the transports, such as
/// <tensorhub/transports/tcp.hpp>, the reference server (server.hpp), `blake3_128`
/// (policy/integrity/blake3_128.hpp), and copies shared by processes (shared_copy.hpp, attached_copy.hpp).

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
