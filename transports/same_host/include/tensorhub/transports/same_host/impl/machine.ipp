#pragma once
/// \file machine.ipp
/// Definitions of machine.hpp.

#include <array>
#include <cerrno>
#include <cstdint>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/machine_id.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/machine.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL std::string word_of_file(const char* path) {
  std::ifstream in{path};
  std::string word;
  in >> word;
  return word;
}

TENSORHUB_DECL machine_identity machine_identity::of_this_process() {
  machine_identity own{detail::machine_id(), {}};
  std::array<char, 64> link{};
  const auto length = ::readlink("/proc/self/ns/net", link.data(), link.size() - 1);
  for (ssize_t i = 0; i < length; ++i) {
    const char c = link[static_cast<std::size_t>(i)];
    if (c >= '0' && c <= '9') own.network_namespace += c;
  }
  if (own.boot_id.find_first_of("./") != std::string::npos) own.boot_id = "unknown";
  if (own.network_namespace.empty()) own.network_namespace = "unknown";
  return own;
}

TENSORHUB_DECL std::string host_address::text() const {
  return std::string{scheme} + machine.boot_id + "." + machine.network_namespace + "/" + socket;
}

TENSORHUB_DECL std::optional<host_address> host_address::parse(std::string_view text) {
  constexpr std::size_t longest_name = 100;  // of an abstract socket: 107
  if (text.size() > limits::address_bytes || !text.starts_with(scheme)) return std::nullopt;
  text.remove_prefix(scheme.size());
  const auto slash = text.find('/');
  const auto dot = text.find('.');
  if (slash == std::string_view::npos || dot >= slash || slash + 1 == text.size()) return std::nullopt;
  const auto name = text.substr(slash + 1);
  if (dot == 0 || dot + 1 == slash || name.size() > longest_name) return std::nullopt;
  return host_address{{std::string{text.substr(0, dot)}, std::string{text.substr(dot + 1, slash - dot - 1)}},
                      std::string{name}};
}

TENSORHUB_DECL void require_this_machine(const host_address& address, const machine_identity& own,
                                         const std::string& text) {
  if (address.machine.boot_id != own.boot_id)
    throw error(errc::transport_failed, "same_host: " + text + " is on another machine (boot id " +
                                            address.machine.boot_id + ", here " + own.boot_id + ")");
  if (address.machine.network_namespace != own.network_namespace)
    throw error(errc::transport_failed,
                "same_host: " + text + " is in another container of this machine (network namespace " +
                    address.machine.network_namespace + ", here " + own.network_namespace +
                    "): let them share one, or use another transport");
}

TENSORHUB_DECL std::string why_attach_fails(int code, pid_t process, uid_t its_uid) {
  const std::string which = "process " + std::to_string(process);
  if (process <= 0)
    return "its process id is not visible here: let both share a PID namespace (docker run --pid), or set "
           "the option attach to `never` if all of its memory lies in files";
  if (code == ENOSYS) return "this kernel has no process_vm_readv (CONFIG_CROSS_MEMORY_ATTACH)";
  if (code != EPERM && code != EACCES)
    return "reading the memory of " + which + " failed: " + std::strerror(code);
  std::string out = "the kernel forbids reading the memory of " + which + " (" + std::strerror(code) + "): ";
  if (its_uid != ::geteuid())
    return out + "it belongs to user " + std::to_string(its_uid) + ", this process to user " +
           std::to_string(::geteuid()) + "; run both as one user, or give the reader CAP_SYS_PTRACE";
  const std::string scope = word_of_file("/proc/sys/kernel/yama/ptrace_scope");
  if (scope == "1")
    return out +
           "Yama lets only its parents attach (kernel.yama.ptrace_scope is 1); set the source's option "
           "`allow_any_tracer`, or the sysctl to 0, or give the reader CAP_SYS_PTRACE";
  if (scope == "2")
    return out +
           "Yama wants CAP_SYS_PTRACE (kernel.yama.ptrace_scope is 2); give it to the reader, or set the "
           "sysctl to 0";
  if (scope == "3")
    return out + "Yama lets nobody attach until the next boot (kernel.yama.ptrace_scope is 3)";
  return out +
         "it is not dumpable (prctl PR_SET_DUMPABLE, or it has changed its user), or a container's "
         "seccomp or security profile forbids process_vm_readv; make it dumpable, or give the reader "
         "CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)";
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
