#pragma once
/// \file machine.hpp
/// The identity of this machine, addresses that contain it, and the reasons for which the kernel may forbid a
/// process to read another's memory.
///
/// An address is "same-host://<boot id>.<network namespace>/<socket>": the boot id differs between machines
/// and after every boot, and the namespace is the scope of abstract UNIX sockets. The address alone therefore
/// shows whether a process can be reached.
///
/// Thread safety: free functions without shared state.

#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

inline constexpr std::string_view scheme = "same-host://";

/// The first word of a small system file; empty if the file cannot be read.
[[nodiscard]] std::string word_of_file(const char* path);

struct machine_identity {
  std::string boot_id{};            ///< "unknown" if the system hides it
  std::string network_namespace{};  ///< its number; "unknown" if the system hides it
  bool operator==(const machine_identity&) const = default;

  [[nodiscard]] static machine_identity of_this_process();
};

struct host_address {
  machine_identity machine{};
  std::string socket{};  ///< abstract name, without its leading zero byte

  [[nodiscard]] std::string text() const;
  [[nodiscard]] static std::optional<host_address> parse(std::string_view text);
};

/// Throws `transport_failed` if the address names another machine or container than this process's.
void require_this_machine(const host_address& address, const machine_identity& own, const std::string& text);

/// Why process_vm_readv on that process failed with `code`, and what would allow it.
[[nodiscard]] std::string why_attach_fails(int code, pid_t process, uid_t its_uid);

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/machine.ipp"
#endif
