#pragma once
/// \file kinds.hpp
/// One function per transport .cpp; kinds.cpp calls those that are built in.

#include "contender.hpp"

namespace transport_bench {

[[nodiscard]] transport_kind tcp_kind();
[[nodiscard]] transport_kind tls_kind();
[[nodiscard]] transport_kind same_host_kind();
[[nodiscard]] transport_kind verbs_kind();
[[nodiscard]] transport_kind libfabric_kind();

}  // namespace transport_bench
