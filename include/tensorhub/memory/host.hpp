#pragma once
/// \file host.hpp
/// Memory space `host_memory`: ordinary memory of the process, preferably in a memfd.
///
/// Weights may lie anywhere the CPU can reach. If they lie in a file that is mapped shared (a memfd, a file
/// in the page cache), a transport can send them without copying: TCP gives the pages to `sendfile`, and
/// same-host readers map them. `allocate` returns such memory, and `file_mapping` makes the user's own
/// mapping known. Other memory is served too, by copying.
///
/// Thread safety: any thread may call any function.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "tensorhub/concepts/memory_space.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/process_wide.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace detail {

/// The shared file mappings of this process and their files.
struct file_mappings {
  /// `is_inherited`: a forked child has it, too.
  void insert(const void* data, std::uint64_t bytes, int descriptor, std::uint64_t offset, bool is_inherited);
  void erase(const void* data) noexcept;

  /// The known mapping that contains the whole range; else the range itself.
  [[nodiscard]] memory_range around(const memory_range& range) const;

  void in_child() noexcept;

  struct mapping_entry {
    std::uint64_t bytes = 0;
    int descriptor = -1;
    std::uint64_t offset = 0;
    bool is_inherited = false;
  };
  mutable std::mutex mutex;
  std::map<std::uintptr_t, mapping_entry> entries;  ///< guarded by mutex
};

/// Makes the pages of new memory with several threads (the first update would pay for them), if they are
/// available here: a layout may be larger than what is read of it. False: there were too few.
[[nodiscard]] bool make_pages(std::byte* data, std::uint64_t bytes) noexcept;

}  // namespace detail

/// Makes a file mapping of the user known to the host memory space, as long as this object lives.
///
///     void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
///     tensorhub::file_mapping known{data, bytes, fd, 0};
///
/// The mapping must be MAP_SHARED, and this object must outlive every worker that has a tensor inside the
/// mapping. The descriptor is duplicated, so the caller may close its own. Tensors of one mapping are
/// registered with the bytes between them (transfer/registration.hpp), so the mapping must not contain
/// secrets.
class file_mapping {
 public:
  file_mapping(const void* data, std::uint64_t bytes, int descriptor, std::uint64_t offset);
  ~file_mapping() { detail::process_wide<detail::file_mappings>().erase(data_); }
  file_mapping(const file_mapping&) = delete;
  file_mapping& operator=(const file_mapping&) = delete;

 private:
  const void* data_;
  detail::unique_fd descriptor_;
};

/// Model of `memory_space` (concepts/memory_space.hpp).
struct host_memory {
  using concept_tag = memory_space_tag;
  static constexpr bool host_accessible = true;

  /// Zero-filled pages of a memfd, or anonymous pages if there is no memfd. They are made at once if they
  /// are free (Linux 5.14 or newer), as huge pages where the machine gives these to shared memory. Only this
  /// mapping can write to the file (Linux 5.1 or newer). A forked child does not inherit it: a child that
  /// touches it is ended by SIGSEGV. Throws `system_failed` if there is no memory.
  class allocation {
   public:
    explicit allocation(std::uint64_t bytes);
    allocation(allocation&& other) noexcept;
    allocation& operator=(allocation&& other) noexcept;
    ~allocation() { release(); }

    [[nodiscard]] memory_range range() const noexcept {
      return {data_, bytes_, memory_kind::host, descriptor_.get(), 0};
    }
    [[nodiscard]] std::byte* data() const noexcept { return data_; }
    /// How much of it lies in huge pages, as the kernel tells it now (/proc/self/smaps: for reports).
    [[nodiscard]] std::uint64_t huge_page_bytes() const;

   private:
    void release() noexcept;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
    ::pid_t process_ = ::getpid();      ///< has the pages; in its children these addresses are anyone's
    detail::unique_socket descriptor_;  ///< a forked child with a copy would keep the file's pages
  };

  [[nodiscard]] allocation allocate(std::uint64_t bytes) { return allocation{bytes}; }

  /// The known facts about any memory of the process. Throws `invalid_argument` for null.
  [[nodiscard]] memory_range describe(void* data, std::uint64_t bytes);

  /// The allocation or known mapping that contains the whole range; else the range itself.
  [[nodiscard]] memory_range allocation_around(const memory_range& range) {
    return detail::process_wide<detail::file_mappings>().around(range);
  }

  void copy(void* to, const void* from, std::uint64_t bytes) noexcept { std::memcpy(to, from, bytes); }
};
static_assert(memory_space<host_memory>);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/memory/impl/host.ipp"
#endif
