#pragma once
/// \file options.hpp
/// Options of the same-host transport. The defaults suit processes of one user in one container.

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports {

/// How memory with a backing file (memory_range::backing_fd) is read. A source with `ignore` offers no file;
/// otherwise the reader decides.
enum class backing_files : std::uint8_t {
  map,   ///< mapped if the file is sealed against shrinking (as host_memory's is), otherwise read by `pread`
  read,  ///< always by `pread`: no mapping is kept, about half as fast
  ignore,  ///< like memory without a file
};

/// Whether processes read each other's memory by the kernel's cross-memory attach (process_vm_readv).
enum class memory_attach : std::uint8_t {
  automatic,  ///< `connect` tries it, and refuses with the reason if the kernel forbids it
  /// A reader does not try it; memory that its source neither offers in a file nor stages ends in
  /// `local_error`. A source lets nobody attach: from then on its process makes no core dump, and no other
  /// process of its user can trace it (PR_SET_DUMPABLE). It offers a file only where the region is all that
  /// the file holds, and stages other memory: it copies each piece for the reader.
  never,
};

/// How device memory is read by other processes.
enum class device_memory : std::uint8_t {
  map,  ///< a source exports it where it can, and its readers' devices map it (CUDA IPC); the rest is staged
  /// A source exports nothing, and a reader maps nothing: the source's device copies each piece into host
  /// memory for the reader.
  stage,
};

struct same_host_options {
  /// Threads that copy: the polling one and `copy_threads - 1` helpers per transport object. 0: two if the
  /// process has more than one core, otherwise one.
  std::size_t copy_threads = 0;
  /// Reads from this size on bypass the caches on their way to the target, which is much faster if the bytes
  /// are not used at once. Smaller reads stay in the cache for the digest that follows.
  std::uint64_t streaming_from_bytes = 4u << 20;

  backing_files files = backing_files::map;
  memory_attach attach = memory_attach::automatic;

  /// Under Yama's ptrace_scope 1, permit any process of this user to attach to this one (PR_SET_PTRACER_ANY),
  /// as without Yama. Needed by sources whose readers are not their parents.
  bool allow_any_tracer = false;

  /// Users, besides this process's own, from and to which connections are permitted. Where this process's
  /// user has no number in its user namespace, each other such user has the same one (65534): name it to
  /// permit them all.
  std::vector<uid_t> allowed_uids{};

  /// The number of connections (with their mapped files) that are kept for later endpoints to the same
  /// processes, so that no update maps the same files again. 0: none.
  std::size_t kept_connections = 16;

  /// The maximum number of readers' connections; never more than half of the descriptors that the process may
  /// have. At the limit a new connection replaces the oldest one that has not sent its hello; if there is
  /// none, the new connection is refused.
  std::size_t max_connections = 4096;
  /// Of one incarnation; further ones are refused. A connection over which memory is staged costs the source
  /// up to 16 MiB; a device pins them.
  std::size_t max_connections_per_reader = 64;

  std::chrono::milliseconds peer_timeout =
      defaults::peer_timeout;  ///< of silence while a request is outstanding

  device_memory device = device_memory::map;

  /// At a source: called once for each registered region of device memory that readers cannot map, with the
  /// reason, by the thread that registers the region. Must not throw.
  std::function<void(const std::string&)> note{};

  /// For a process on a host with several tenants: its readers get copies of its memory and nothing of it
  /// that they could keep, no file, no export, no permission to attach. So a reader that was cut off, or
  /// whose region was revoked, sees nothing of what is written afterwards, whatever it does. Each byte is
  /// copied once more, by one thread of the source.
  [[nodiscard]] static same_host_options for_tenants() {
    same_host_options out;
    out.files = backing_files::ignore;
    out.attach = memory_attach::never;
    out.device = device_memory::stage;
    return out;
  }

  /// Two functions are never equal.
  [[nodiscard]] bool operator==(const same_host_options& other) const {
    const auto values = [](const same_host_options& each) {
      return std::tie(each.copy_threads, each.streaming_from_bytes, each.files, each.attach,
                      each.allow_any_tracer, each.allowed_uids, each.kept_connections, each.max_connections,
                      each.max_connections_per_reader, each.peer_timeout, each.device);
    };
    return !note && !other.note && values(*this) == values(other);
  }
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports
