/// \file host_memory.cpp
/// Memory space `host`: pages of a memfd, and what is known of other memory.

#include "support/calls.hpp"
#include "support/short_files.hpp"
#include "tensorhub/detail/file_seals.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/memory/host.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace tensorhub;
using calls::code_of;

namespace {

const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));

/// `bytes` bytes at `offset` of a file.
[[nodiscard]] std::string file_bytes(int descriptor, std::uint64_t offset, std::size_t bytes) {
  std::string out(bytes, '?');
  REQUIRE(::pread(descriptor, out.data(), bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes));
  return out;
}

void write(std::byte* at, const std::string& text) {
  std::memcpy(at, text.data(), text.size());
}

/// A file without a name, mapped shared from its second page on.
class mapped_file {
 public:
  mapped_file() {
    std::string path = std::filesystem::temp_directory_path() / ("tensorhub_unit_" + std::string(6, 'X'));
    descriptor_.reset(::mkstemp(path.data()));
    REQUIRE(bool{descriptor_});
    ::unlink(path.c_str());
    REQUIRE(::ftruncate(descriptor_.get(), static_cast<off_t>(page + bytes)) == 0);
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(),
                                static_cast<off_t>(page));
    REQUIRE(memory != MAP_FAILED);
    data = static_cast<std::byte*>(memory);
  }
  ~mapped_file() { ::munmap(data, bytes); }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_.get(); }
  void close_descriptor() { descriptor_.reset(); }

  const std::uint64_t bytes = 2 * page;
  const std::uint64_t offset = page;
  std::byte* data = nullptr;

 private:
  detail::unique_fd descriptor_;
};

// ---- allocations

TEST_CASE("host memory: an allocation is zero-filled, at a page, and as long as asked for") {
  host_memory space;
  for (const std::uint64_t bytes : {std::uint64_t{1}, page - 1, page, page + 1, std::uint64_t{300'001}}) {
    CAPTURE(bytes);
    const auto memory = space.allocate(bytes);
    CHECK(memory.range().bytes == bytes);
    CHECK(memory.range().data == memory.data());
    CHECK(memory.range().kind == memory_kind::host);
    CHECK(reinterpret_cast<std::uintptr_t>(memory.data()) % page == 0);
    CHECK(std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::memset(memory.data(), 7, bytes);  // all of it may be written
  }
}

TEST_CASE("host memory: all pages of an allocation are there at once; huge ones where the machine has them") {
  host_memory space;
  const std::uint64_t bytes = (130u << 20) + page;  // three pieces for the threads that make them
  const auto memory = space.allocate(bytes);
  constexpr int populate_read = 22;
  if (::madvise(memory.data(), page, populate_read) != 0 && errno == EINVAL) {
    std::cout
        << "SKIPPED: unit.host_memory: pages ahead: this kernel makes none (Linux 5.14 or newer does)\n";
    return;
  }
  std::vector<unsigned char> resident(bytes / page);
  REQUIRE(::mincore(memory.data(), bytes, resident.data()) == 0);
  CHECK(std::ranges::all_of(resident, [](unsigned char each) { return (each & 1) != 0; }));
  std::ifstream setting{"/sys/kernel/mm/transparent_hugepage/shmem_enabled"};
  std::string words;
  std::getline(setting, words);
  CAPTURE(words);
  const bool are_given = words.find("[a") != std::string::npos || words.find("[w") != std::string::npos ||
                         words.find("[f") != std::string::npos;
  MESSAGE("shared memory gets huge pages: ", words, "; of this allocation: ", memory.huge_page_bytes());
  std::ifstream size{"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"};
  std::uint64_t smallest = 0;  // 512 MiB on ARM with pages of 64 KiB
  size >> smallest;
  CHECK((memory.huge_page_bytes() > 0) == (are_given && bytes >= smallest));
}

TEST_CASE("host memory: what is written is in the backing file") {
  host_memory space;
  const auto memory = space.allocate(3 * page);
  const memory_range range = memory.range();
  REQUIRE(range.backing_fd >= 0);
  CHECK(range.backing_offset == 0);
  write(memory.data() + page + 10, "weights");
  CHECK(file_bytes(range.backing_fd, page + 10, 7) == "weights");
  CHECK((::fcntl(range.backing_fd, F_GETFD) & FD_CLOEXEC) != 0);  // no child inherits it
}

TEST_CASE("host memory: two allocations are two files") {
  host_memory space;
  const auto one = space.allocate(page);
  const auto two = space.allocate(page);
  write(one.data(), "one");
  write(two.data(), "two");
  CHECK(file_bytes(one.range().backing_fd, 0, 3) == "one");
  CHECK(file_bytes(two.range().backing_fd, 0, 3) == "two");
}

TEST_CASE("host memory: no bytes and too many are refused") {
  host_memory space;
  CHECK(code_of([&] { static_cast<void>(space.allocate(0)); }) == errc::invalid_argument);
  CHECK(code_of([&] { static_cast<void>(space.allocate(limits::shard_bytes + 1)); }) ==
        errc::invalid_argument);
  CHECK(code_of([&] { static_cast<void>(space.allocate(UINT64_MAX)); }) == errc::invalid_argument);
}

TEST_CASE("host memory: what may not be a file of that length (ulimit -f) is memory without one") {
  const std::uint64_t bytes = 16 * page;
  for (const bool fits : {true, false}) {
    CAPTURE(fits);
    std::optional<host_memory::allocation> memory;
    {
      const short_files limit{fits ? bytes : bytes - 1};
      memory.emplace(bytes);
    }
    CHECK((host_memory{}.describe(memory->data(), bytes).backing_fd >= 0) == fits);
    memory->data()[bytes - 1] = std::byte{1};
  }
}

// ---- describing

TEST_CASE("host memory: any part of an allocation is described with its place in the file") {
  host_memory space;
  const auto memory = space.allocate(2 * page);
  const int file = memory.range().backing_fd;
  REQUIRE(file >= 0);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> parts{
      {0, 2 * page}, {0, 1}, {1, 2 * page - 1}, {page + 3, 100}, {2 * page - 1, 1}};
  for (const auto& part : parts) {
    const std::uint64_t offset = part.first;
    const std::uint64_t bytes = part.second;
    CAPTURE(offset);
    const memory_range range = space.describe(memory.data() + offset, bytes);
    CHECK(range.data == memory.data() + offset);
    CHECK(range.bytes == bytes);
    CHECK(range.kind == memory_kind::host);
    CHECK(range.backing_fd == file);
    CHECK(range.backing_offset == offset);
  }
}

TEST_CASE("host memory: what begins outside of a mapping or straddles its end has no file") {
  host_memory space;
  const auto memory = space.allocate(page);
  REQUIRE(space.describe(memory.data(), page).backing_fd >= 0);
  const auto unknown = [&](std::byte* data, std::uint64_t bytes) {
    const memory_range range = space.describe(data, bytes);
    CHECK(range.data == data);
    CHECK(range.bytes == bytes);
    return range.backing_fd == -1 && range.backing_offset == 0;
  };
  CHECK(unknown(memory.data(), page + 1));
  CHECK(unknown(memory.data() + 1, page));
  CHECK(unknown(memory.data() + page - 1, 2));
  CHECK(unknown(memory.data() + 1, UINT64_MAX));
  CHECK(unknown(memory.data() - 1, 2));
  CHECK(unknown(memory.data() + page, 1));
  std::array<std::byte, 64> plain{};
  CHECK(unknown(plain.data(), plain.size()));
}

TEST_CASE("host memory: null is no memory") {
  host_memory space;
  CHECK(code_of([&] { static_cast<void>(space.describe(nullptr, 8)); }) == errc::invalid_argument);
}

TEST_CASE("host memory: memory that is gone is forgotten") {
  host_memory space;
  std::byte* data = nullptr;
  {
    const auto memory = space.allocate(page);
    data = memory.data();
    REQUIRE(space.describe(data, page).backing_fd >= 0);
  }
  CHECK(space.describe(data, page).backing_fd == -1);  // described, not touched
}

// ---- moving

TEST_CASE("host memory: a moved allocation is the same memory, known once") {
  host_memory space;
  auto first = space.allocate(page);
  std::byte* const data = first.data();
  const int file = first.range().backing_fd;
  write(data, "kept");

  host_memory::allocation second{std::move(first)};
  CHECK(second.data() == data);
  CHECK(second.range().bytes == page);
  CHECK(second.range().backing_fd == file);
  CHECK(std::memcmp(second.data(), "kept", 4) == 0);
  CHECK(space.describe(data, page).backing_fd == file);

  auto third = space.allocate(2 * page);
  std::byte* const replaced = third.data();
  third = std::move(second);
  CHECK(third.data() == data);
  CHECK(third.range().bytes == page);
  CHECK(std::memcmp(third.data(), "kept", 4) == 0);
  CHECK(space.describe(replaced, page).backing_fd == -1);  // what it held before is gone
  CHECK(file_bytes(file, 0, 4) == "kept");

  auto& same = third;
  third = std::move(same);
  CHECK(third.data() == data);
  CHECK(std::memcmp(third.data(), "kept", 4) == 0);
}

// ---- the user's own mappings

TEST_CASE("host memory: a file mapping is known for as long as it is made known") {
  host_memory space;
  const mapped_file file;
  CHECK(space.describe(file.data, file.bytes).backing_fd == -1);
  {
    const file_mapping known{file.data, file.bytes, file.descriptor(), file.offset};
    const memory_range range = space.describe(file.data + 100, 50);
    REQUIRE(range.backing_fd >= 0);
    CHECK(range.backing_offset == file.offset + 100);
    write(file.data + 100, "in the file");
    CHECK(file_bytes(range.backing_fd, range.backing_offset, 11) == "in the file");
    CHECK(space.describe(file.data + file.bytes - 1, 2).backing_fd == -1);
  }
  CHECK(space.describe(file.data, file.bytes).backing_fd == -1);
}

TEST_CASE("host memory: the caller may close its descriptor, the mapping keeps its own") {
  host_memory space;
  mapped_file file;
  const file_mapping known{file.data, file.bytes, file.descriptor(), file.offset};
  const memory_range range = space.describe(file.data, file.bytes);
  CHECK(range.backing_fd != file.descriptor());
  CHECK((::fcntl(range.backing_fd, F_GETFD) & FD_CLOEXEC) != 0);
  file.close_descriptor();
  write(file.data, "still");
  CHECK(file_bytes(range.backing_fd, range.backing_offset, 5) == "still");
}

TEST_CASE("host memory: a mapping of no file is refused") {
  host_memory space;
  std::array<std::byte, 64> plain{};
  CHECK(code_of([&] { const file_mapping known{plain.data(), plain.size(), -1, 0}; }) == errc::system_failed);
  CHECK(space.describe(plain.data(), plain.size()).backing_fd == -1);
}

TEST_CASE("host memory: neighbours are told apart") {
  host_memory space;
  const mapped_file file;
  const file_mapping low{file.data, page, file.descriptor(), file.offset};
  const file_mapping high{file.data + page, page, file.descriptor(), file.offset + page};
  CHECK(space.describe(file.data + page - 1, 1).backing_offset == file.offset + page - 1);
  CHECK(space.describe(file.data + page, 1).backing_offset == file.offset + page);
  CHECK(space.describe(file.data, 1).backing_fd != space.describe(file.data + page, 1).backing_fd);
  CHECK(space.describe(file.data + page - 1, 2).backing_fd == -1);  // in both, in neither wholly
}

TEST_CASE("host memory: the allocation around a range, or the range itself where none is known") {
  host_memory space;
  const auto memory = space.allocate(4 * page);
  const memory_range whole = memory.range();
  const auto same = [](const memory_range& a, const memory_range& b) {
    return a.data == b.data && a.bytes == b.bytes && a.backing_fd == b.backing_fd &&
           a.backing_offset == b.backing_offset;
  };
  CHECK(same(space.allocation_around(whole), whole));
  CHECK(same(space.allocation_around(space.describe(memory.data() + 100, 2 * page)), whole));
  const memory_range beyond = space.describe(memory.data() + page, 4 * page);
  CHECK(same(space.allocation_around(beyond), beyond));
  std::array<std::byte, 64> plain{};
  const memory_range ours = space.describe(plain.data() + 8, 16);
  CHECK(same(space.allocation_around(ours), ours));
  const mapped_file file;
  const file_mapping known{file.data, 2 * page, file.descriptor(), file.offset};
  const memory_range around = space.allocation_around(space.describe(file.data + page, 10));
  CHECK(around.data == file.data);
  CHECK(around.bytes == 2 * page);
  CHECK(around.backing_offset == file.offset);
}

TEST_CASE("host memory: whoever has the descriptor of an allocation can read it, and cannot write to it") {
  const host_memory::allocation memory{2 * page};
  write(memory.data(), "weights");
  const int own = memory.range().backing_fd;
  REQUIRE(own >= 0);
  struct stat facts {};
  REQUIRE(::fstat(own, &facts) == 0);
  CHECK((facts.st_mode & 0777) == 0400);  // no other user opens it for writing
  const detail::unique_fd probe{::memfd_create("probe", MFD_ALLOW_SEALING)};
  if (::fcntl(probe.get(), F_ADD_SEALS, detail::seal_future_write) != 0) {
    std::cout << "SKIPPED: unit.host_memory: no writing by a descriptor: this kernel has no"
              << " F_SEAL_FUTURE_WRITE\n";
    return;
  }
  // Root may open it again, whatever its mode is.
  const std::string path = "/proc/self/fd/" + std::to_string(own);
  const detail::unique_fd again{::open(path.c_str(), O_RDWR | O_CLOEXEC)};
  for (const int descriptor : {own, again.get()}) {
    if (descriptor < 0) continue;
    CHECK(::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) == MAP_FAILED);
    CHECK(::pwrite(descriptor, "forged!", 7, 0) == -1);
    void* const view = ::mmap(nullptr, page, PROT_READ, MAP_SHARED, descriptor, 0);
    REQUIRE(view != MAP_FAILED);
    CHECK(::mprotect(view, page, PROT_READ | PROT_WRITE) == -1);
    ::munmap(view, page);
  }
  CHECK(file_bytes(own, 0, 7) == "weights");
  write(memory.data(), "renewed");
  CHECK(file_bytes(own, 0, 7) == "renewed");
}

TEST_CASE("host memory: copying copies exactly that") {
  host_memory space;
  const auto memory = space.allocate(page);
  const std::string text = "weights";
  space.copy(memory.data() + 8, text.data(), text.size());
  CHECK(std::memcmp(memory.data() + 8, text.data(), text.size()) == 0);
  CHECK(memory.data()[7] == std::byte{0});
  CHECK(memory.data()[8 + text.size()] == std::byte{0});
}

}  // namespace
