// Promise 5 of the same-host transport at the worst moment: a permission ends while one piece is being
// copied. The moment is made, not met: the target's second page is missing, so that the copy stops there
// until the test, which is told by userfaultfd, lets it go on.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <optional>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::incarnation;
using tensorhub::region_access;
using tensorhub::transports::backing_files;
using tensorhub::transports::same_host;

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t pages = 16;
constexpr incarnation source_id{31};
constexpr incarnation reader_id{32};

/// Pages of which all but the first are missing until `let_go`.
class halting_memory {
 public:
  halting_memory() {
    faults_.reset(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK)));
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, pages * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    data_[0] = std::byte{1};
    if (!faults_) return;
    uffdio_api api{};
    api.api = UFFD_API;
    uffdio_register where{};
    where.range = {reinterpret_cast<std::uintptr_t>(data_) + page_bytes, (pages - 1) * page_bytes};
    where.mode = UFFDIO_REGISTER_MODE_MISSING;
    works_ =
        ::ioctl(faults_.get(), UFFDIO_API, &api) == 0 && ::ioctl(faults_.get(), UFFDIO_REGISTER, &where) == 0;
  }
  ~halting_memory() { ::munmap(data_, pages * page_bytes); }
  halting_memory(const halting_memory&) = delete;
  halting_memory& operator=(const halting_memory&) = delete;

  [[nodiscard]] bool works() const { return works_; }
  [[nodiscard]] tensorhub::memory_range range() const { return {data_, pages * page_bytes}; }
  /// Somebody has come to the second page.
  [[nodiscard]] bool wait_for_fault() const {
    pollfd entry{faults_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 10'000) == 1;
  }
  void let_go() const {
    uffdio_zeropage zeros{};
    zeros.range = {reinterpret_cast<std::uintptr_t>(data_) + page_bytes, (pages - 1) * page_bytes};
    ::ioctl(faults_.get(), UFFDIO_ZEROPAGE, &zeros);
  }

 private:
  tensorhub::detail::unique_fd faults_;
  std::byte* data_ = nullptr;
  bool works_ = false;
};

struct way {
  const char* name;
  bool in_file;
  backing_files files;
};

/// Status of a read in whose middle `end_permission` was called; nothing if it cannot be halted here.
std::optional<completion_status> read_halted(
    const way& how,
    const std::function<void(same_host&, std::vector<same_host::memory_region>&)>& meanwhile) {
  const halting_memory target;
  if (!target.works()) return std::nullopt;
  const tensorhub::host_memory::allocation in_file{pages * page_bytes};
  std::vector<std::byte> plain(pages * page_bytes);
  const tensorhub::memory_range from =
      how.in_file ? in_file.range() : tensorhub::memory_range{plain.data(), plain.size()};
  std::memset(from.data, 1, from.bytes);
  same_host source{{.files = how.files}, source_id};
  same_host reader{{.copy_threads = 1, .files = how.files}, reader_id};
  auto regions = source.register_memory(std::span{&from, 1}, region_access::remote_read);
  const auto remote = source.describe(regions.front());
  const auto range = target.range();
  const auto into = reader.register_memory(std::span{&range, 1}, region_access::local_write);
  std::optional<completion_status> ended;
  std::jthread reading{[&] {
    auto queue = reader.make_queue(1);
    auto endpoint = reader.connect(queue, source.address(), source_id, 5s);
    static_cast<void>(queue.post_read(endpoint, into.front(), 0, {&remote, 0, range.bytes}, 7));
    std::array<completion, 1> done{completion{0, completion_status::local_error}};  // if nothing comes
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (queue.poll(done) == 0 && std::chrono::steady_clock::now() < until) queue.wait(100ms);
    ended = done[0].status;
  }};
  CHECK(target.wait_for_fault());
  meanwhile(source, regions);
  std::memset(from.data, 2, from.bytes);
  target.let_go();
  reading.join();
  return ended;
}

}  // namespace

TEST_CASE("same_host: a permission that ends in the middle of a piece: the read does not end ok") {
  for (const way& how : {way{"mapped", true, backing_files::map}, way{"pread", true, backing_files::read},
                         way{"process_vm_readv", false, backing_files::map}}) {
    CAPTURE(how.name);
    const auto undisturbed = read_halted(how, [](auto&, auto&) {});
    if (!undisturbed) {
      std::cout << "same_host: skipped, the system gives this process no userfaultfd: " << how.name << "\n";
      continue;
    }
    CHECK(undisturbed == completion_status::ok);
    CHECK(read_halted(how, [](same_host& source, auto& regions) { source.revoke(regions.front()); }) ==
          completion_status::access_denied);
    CHECK(read_halted(how, [](same_host&, auto& regions) { regions.clear(); }) ==
          completion_status::access_denied);
    CHECK(read_halted(how, [](same_host& source, auto&) { source.cut_off(reader_id); }) ==
          completion_status::cut_off);
  }
}
