#pragma once
/// \file host.ipp
/// The table of file mappings and the allocation of memfds: definitions of host.hpp.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "tensorhub/detail/available_memory.hpp"
#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/detail/in_parallel.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/host.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL void file_mappings::insert(const void* data, std::uint64_t bytes, int descriptor,
                                          std::uint64_t offset, bool is_inherited) {
  const std::lock_guard lock{mutex};
  entries[reinterpret_cast<std::uintptr_t>(data)] = {bytes, descriptor, offset, is_inherited};
}

TENSORHUB_DECL void file_mappings::erase(const void* data) noexcept {
  const std::lock_guard lock{mutex};
  entries.erase(reinterpret_cast<std::uintptr_t>(data));
}

TENSORHUB_DECL void file_mappings::in_child() noexcept {
  std::erase_if(entries, [](const auto& entry) { return !entry.second.is_inherited; });
}

TENSORHUB_DECL memory_range file_mappings::around(const memory_range& range) const {
  const auto first = reinterpret_cast<std::uintptr_t>(range.data);
  const std::lock_guard lock{mutex};
  const auto after = entries.upper_bound(first);
  if (after == entries.begin()) return range;
  const auto& [begin, mapping] = *std::prev(after);
  const std::uint64_t inside = first - begin;
  if (inside > mapping.bytes || range.bytes > mapping.bytes - inside) return range;
  return {range.data - inside, mapping.bytes, memory_kind::host, mapping.descriptor, mapping.offset};
}

TENSORHUB_DECL bool make_pages(std::byte* data, std::uint64_t bytes) noexcept {
  constexpr std::uint64_t small_bytes = 1u << 20;  // as much as another program may take at any moment
  if (bytes > small_bytes && bytes > available_memory_bytes()) return true;
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14; older headers do not have it
  constexpr std::uint64_t piece_bytes = 64u << 20;
  constexpr std::uint64_t most_threads = 8;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&](std::size_t) {
    for (std::uint64_t at = next.fetch_add(piece_bytes); at < bytes; at = next.fetch_add(piece_bytes)) {
      if (::madvise(data + at, std::min(piece_bytes, bytes - at), populate_write) != 0 && errno == ENOMEM)
        failed = true;
    }
  };
  const std::uint64_t cores = std::max(std::thread::hardware_concurrency(), 1u);
  const std::uint64_t threads = std::min({cores, most_threads, bytes / piece_bytes});
  try {
    in_parallel(threads, std::ref(work));
  } catch (...) {  // no memory for threads
    work(0);
  }
  return !failed;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL file_mapping::file_mapping(const void* data, std::uint64_t bytes, int descriptor,
                                          std::uint64_t offset)
    : data_{data}, descriptor_{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)} {
  if (!descriptor_) {
    throw error(errc::system_failed,
                std::string{"the file of a mapping cannot be duplicated: "} + std::strerror(errno));
  }
  detail::process_wide<detail::file_mappings>().insert(data, bytes, descriptor_.get(), offset, true);
}

TENSORHUB_DECL host_memory::allocation::allocation(std::uint64_t bytes) : bytes_{bytes} {
  if (bytes == 0 || bytes > limits::shard_bytes) {
    throw error(errc::invalid_argument, "cannot allocate " + std::to_string(bytes) + " bytes");
  }
  descriptor_ = detail::unique_socket{::memfd_create("tensorhub", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (descriptor_ && !detail::set_file_bytes(descriptor_.get(), bytes)) descriptor_.reset();
  // The length of the file is sealed, so that a reader's mapping of it cannot fault. If sealing fails,
  // readers do not map it.
  constexpr int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  if (descriptor_) static_cast<void>(::fcntl(descriptor_.get(), F_ADD_SEALS, seals));
  const int flags = descriptor_ ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, descriptor_ ? descriptor_.get() : -1, 0);
  if (memory == MAP_FAILED) {
    throw error(errc::system_failed,
                "no memory for " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(memory);
  static_cast<void>(::madvise(memory, bytes, MADV_HUGEPAGE));
  if (!detail::make_pages(data_, bytes)) {
    ::munmap(std::exchange(data_, nullptr), bytes);
    throw error(errc::system_failed, "no memory for " + std::to_string(bytes) +
                                         " bytes: end other programs, or raise the limit of this one");
  }
  // Readers of other processes get the descriptor and must not write to the pages. Older kernels do not know
  // this seal; there, and for other users in any case, the mode keeps a reader from opening the file again.
  if (descriptor_) {
    static_cast<void>(::fcntl(descriptor_.get(), F_ADD_SEALS, detail::seal_future_write));
    static_cast<void>(::fchmod(descriptor_.get(), 0400));
  }
  // What a forked child wrote to these shared pages would change the bytes of a published version, and what
  // it has of them or of their file would outlive this process.
  static_cast<void>(::madvise(memory, bytes, MADV_DONTFORK));
  if (!descriptor_) return;
  try {
    detail::process_wide<detail::file_mappings>().insert(data_, bytes_, descriptor_.get(), 0, false);
  } catch (...) {
    release();
    throw;
  }
}

TENSORHUB_DECL host_memory::allocation::allocation(allocation&& other) noexcept
    : data_{std::exchange(other.data_, nullptr)},
      bytes_{std::exchange(other.bytes_, 0)},
      process_{other.process_},
      descriptor_{std::move(other.descriptor_)} {}

TENSORHUB_DECL host_memory::allocation& host_memory::allocation::operator=(allocation&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    process_ = other.process_;
    descriptor_ = std::move(other.descriptor_);
  }
  return *this;
}

TENSORHUB_DECL std::uint64_t host_memory::allocation::huge_page_bytes() const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data_);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps{std::fopen("/proc/self/smaps", "re"),
                                                             &std::fclose};
  std::uint64_t kibibytes = 0;
  bool is_inside = false;
  char line[512];
  while (maps && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    unsigned long long huge = 0;
    if (std::sscanf(line, "%llx-%llx ", &first, &last) == 2)
      is_inside = first >= begin && first < begin + bytes_;
    else if (is_inside && (std::sscanf(line, "ShmemPmdMapped: %llu", &huge) == 1 ||
                           std::sscanf(line, "AnonHugePages: %llu", &huge) == 1))
      kibibytes += huge;
  }
  return kibibytes * 1024;
}

TENSORHUB_DECL void host_memory::allocation::release() noexcept {
  const bool is_own = data_ != nullptr && process_ == ::getpid();
  if (is_own && descriptor_) detail::process_wide<detail::file_mappings>().erase(data_);
  descriptor_.reset();  // first: forks wait for it, and the end of the pages may take long
  if (is_own) ::munmap(data_, bytes_);
}

TENSORHUB_DECL memory_range host_memory::describe(void* data, std::uint64_t bytes) {
  if (data == nullptr) throw error(errc::invalid_argument, "null is no memory");
  memory_range range{static_cast<std::byte*>(data), bytes};
  const memory_range known = allocation_around(range);
  range.backing_fd = known.backing_fd;
  if (known.backing_fd >= 0)
    range.backing_offset = known.backing_offset + static_cast<std::uint64_t>(range.data - known.data);
  return range;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
