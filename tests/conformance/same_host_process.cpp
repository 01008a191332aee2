// The same-host transport against sources in other processes: killed, stopped, replaced, of another user,
// unreadable, with files that are not sealed or become shorter.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <vector>

#include "other_user.hpp"
#include "source_process.hpp"

namespace {

using namespace std::chrono_literals;
using other_users::as_user;
using other_users::become;
using other_users::nobody;
using processes::channel;
using processes::child_process;
using source_processes::counts;
using source_processes::reader_id;
using source_processes::region_bytes;
using source_processes::source_id;
using tensorhub::completion;
using tensorhub::completion_status;
using tensorhub::errc;
using tensorhub::incarnation;
using tensorhub::region_access;
using tensorhub::transports::memory_attach;
using tensorhub::transports::same_host;

/// How the source's memory lies.
enum class memory_of_source { sealed_file, plain, loose_file, private_file };

struct source_setup {
  memory_of_source memory = memory_of_source::sealed_file;
  same_host::options options{};
  std::optional<uid_t> user{};  ///< that it becomes
  bool dumpable = true;
  incarnation self = source_id;
};

[[nodiscard]] std::uint64_t word_at(std::uint64_t i) {
  return (i + 1) * 0x9e3779b97f4a7c15u;
}

/// Memory of one kind, filled with `word_at`.
struct source_memory {
  std::optional<tensorhub::host_memory::allocation> sealed{};
  std::vector<std::uint64_t> plain{};
  tensorhub::detail::unique_fd file{};
  tensorhub::memory_range range{};

  explicit source_memory(memory_of_source kind) {
    switch (kind) {
      case memory_of_source::sealed_file:
        sealed.emplace(region_bytes);
        range = sealed->range();
        break;
      case memory_of_source::plain:
        plain.resize(region_bytes / 8);
        range = {reinterpret_cast<std::byte*>(plain.data()), region_bytes};
        break;
      case memory_of_source::loose_file:
      case memory_of_source::private_file:
        file.reset(::memfd_create("loose", MFD_CLOEXEC));
        if (kind == memory_of_source::private_file) ::fchmod(file.get(), 0600);
        if (::ftruncate(file.get(), region_bytes) != 0) std::_Exit(3);
        range.data = static_cast<std::byte*>(
            ::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
        range.bytes = region_bytes;
        range.backing_fd = file.get();
        break;
    }
    for (std::uint64_t i = 0; i * 8 < region_bytes; ++i) {
      const std::uint64_t word = word_at(i);
      std::memcpy(range.data + i * 8, &word, 8);
    }
  }
};

/// A process that serves one region, until it is killed. Orders: 't' its file becomes empty, 'r' it revokes
/// and overwrites, 'u' it deregisters, 'f' it gets a child that has all of its descriptors.
struct source_process {
  child_process process;
  tensorhub::transport_address address{};
  tensorhub::remote_region region{};

  explicit source_process(const source_setup& setup = {})
      : process{[&](channel& line) { serve(setup, line); }} {
    address.text = process.line().take<source_processes::text>().data();
    region = process.line().take<tensorhub::remote_region>();
  }
  void signal(int number) const { process.signal(number); }
  void order(char what) const {
    process.line().tell(what);
    REQUIRE(process.line().take<char>() == what);
  }

 private:
  /// Until the test has ended.
  [[noreturn]] static void hold(const channel& line) {
    ::alarm(60);
    for (pollfd entry{line.descriptor(), 0, 0}; ::poll(&entry, 1, -1) <= 0;) {
    }
    std::_Exit(0);
  }
  static void serve(const source_setup& setup, const channel& line) {
    if (setup.user && !become(*setup.user)) std::_Exit(4);
    ::prctl(PR_SET_DUMPABLE, setup.dumpable ? 1 : 0);
    const source_memory memory{setup.memory};
    same_host through{setup.options, setup.self};
    auto regions = through.register_memory(std::span{&memory.range, 1}, region_access::remote_read);
    source_processes::introduce(line, through, regions.front());
    for (char what = 0; line.try_take(what);) {
      if (what == 't' && ::ftruncate(memory.file.get(), 0) != 0) return;
      if (what == 'r') {
        through.revoke(regions.front());
        std::memset(memory.range.data, 0, region_bytes);
      }
      if (what == 'f' && ::fork() == 0) hold(line);
      if (what == 'u') regions.clear();
      line.tell(what);
    }
  }
};

/// The shared reading side, whose reads clear the target first.
struct reading_side : source_processes::reading_side<same_host> {
  using source_processes::reading_side<same_host>::reading_side;

  counts read(const source_process& source, std::size_t count = 1) {
    std::memset(target.data(), 0, region_bytes);
    post_all(source.region, count);
    return drain();
  }
  [[nodiscard]] bool has_the_bytes() const {
    for (std::uint64_t i = 0; i * 8 < region_bytes; ++i) {
      const std::uint64_t word = word_at(i);
      if (std::memcmp(target.data() + i * 8, &word, 8) != 0) return false;
    }
    return true;
  }
};

/// This process handles a signal every 50 µs, as a profiler's.
class frequent_signals {
 public:
  frequent_signals() {
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;
    REQUIRE(::sigaction(SIGALRM, &nothing, &usual_) == 0);
    const itimerval often{{0, 50}, {0, 50}};
    REQUIRE(::setitimer(ITIMER_REAL, &often, nullptr) == 0);
  }
  ~frequent_signals() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &usual_, nullptr);
  }
  frequent_signals(const frequent_signals&) = delete;
  frequent_signals& operator=(const frequent_signals&) = delete;

 private:
  struct sigaction usual_ {};
};

/// How often a mapping of one of the sources' memfds is in this process's address space.
[[nodiscard]] std::size_t mappings_of_others() {
  std::ifstream maps{"/proc/self/maps"};
  std::size_t found = 0;
  for (std::string line; std::getline(maps, line);) {
    const bool is_ours = line.find("memfd:tensorhub") != std::string::npos;
    if (is_ours && line.find(" r--s ") != std::string::npos && line.find("grants") == std::string::npos)
      ++found;
  }
  return found;
}

/// The descriptors of this process through which memory of host_memory would outlive its owner.
[[nodiscard]] std::ptrdiff_t files_of_memory() {
  const auto is_one = [](const std::filesystem::directory_entry& entry) {
    std::error_code gone;
    const std::string name = std::filesystem::read_symlink(entry.path(), gone).string();
    return name.starts_with("/memfd:tensorhub") && name.find("grants") == std::string::npos;
  };
  const std::filesystem::directory_iterator all{"/proc/self/fd"};
  return std::count_if(begin(all), end(all), is_one);
}

}  // namespace

TEST_CASE("the bytes of another process arrive, whatever its memory is") {
  for (const memory_of_source memory :
       {memory_of_source::sealed_file, memory_of_source::plain, memory_of_source::loose_file}) {
    for (const std::size_t threads : {1u, 2u}) {
      CAPTURE(static_cast<int>(memory));
      CAPTURE(threads);
      const source_process source{{.memory = memory}};
      reading_side reader{{.copy_threads = threads}};
      reader.connect(source.address);
      CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
      CHECK(reader.has_the_bytes());
    }
  }
}

TEST_CASE("a sealed file is mapped once, over several endpoints, and unmapped when it is deregistered") {
  const source_process source{};
  reading_side reader{};
  CHECK(mappings_of_others() == 0);
  for (int round = 0; round < 3; ++round) {
    reader.connect(source.address);
    CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
    CHECK(mappings_of_others() == 1);
  }
  source.order('u');
  CHECK(reader.read(source) == counts{{completion_status::access_denied, 1}});
  CHECK(reader.endpoint->usable());
  reader.endpoint.reset();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (mappings_of_others() > 0 && std::chrono::steady_clock::now() < until) ::usleep(20'000);
  CHECK(mappings_of_others() == 0);
}

TEST_CASE("a forked child of a source has none of the files that the source offers") {
  const auto memory = tensorhub::host_memory{}.allocate(region_bytes);
  const auto range = tensorhub::host_memory{}.allocation_around(memory.range());
  same_host source{{}, source_id};
  const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  REQUIRE(files_of_memory() == 2);  // its owner's, and one for readers
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) std::_Exit(static_cast<int>(files_of_memory()));
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("a file that is not sealed may become shorter: the read is denied, nothing faults") {
  const source_process source{{.memory = memory_of_source::loose_file}};
  reading_side reader{};
  reader.connect(source.address);
  CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
  source.order('t');
  CHECK(reader.read(source) == counts{{completion_status::access_denied, 1}});
}

TEST_CASE("a killed source: every outstanding read ends once, and none ends well afterwards") {
  for (const memory_of_source memory : {memory_of_source::sealed_file, memory_of_source::plain}) {
    CAPTURE(static_cast<int>(memory));
    bool had_reads = false;  // on a busy machine the source may take longer to end than all of its reads
    for (int round = 0; round < 20 && !had_reads; ++round) {
      const source_process source{{.memory = memory}};
      reading_side reader{};
      reader.connect(source.address);
      CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
      reader.post_all(source.region, 8);
      source.signal(SIGKILL);
      auto ended = reader.drain();
      had_reads = ended.erase(completion_status::peer_lost) != 0;
      ended.erase(completion_status::ok);
      CHECK(ended.empty());
      CHECK(reader.read(source) == counts{{completion_status::peer_lost, 1}});
      CHECK(!reader.endpoint->usable());
      const auto [code, sentence] = reader.try_to_connect(source.address);
      CHECK(code == errc::transport_failed);
      CHECK(sentence.find("cannot be reached") != std::string::npos);
    }
    if (!had_reads)
      std::cout << "SKIPPED: conformance.same_host_process: on this busy machine all reads have ended before "
                   "the killed source did, 20 times"
                << std::endl;
  }
}

TEST_CASE("a signal that this process handles while it reads ends no read") {
  const source_process source{{.memory = memory_of_source::plain}};
  reading_side reader{{.copy_threads = 1}};
  reader.connect(source.address);
  const frequent_signals signals;
  counts ended;
  for (int round = 0; round < 1000 && reader.endpoint->usable(); ++round) {
    for (tensorhub::request_id id = 0; id < 8; ++id) reader.post(source.region, 64, 0, id);
    for (const auto& [status, count] : reader.drain()) ended[status] += count;
  }
  CHECK(ended == counts{{completion_status::ok, 8000}});
  CHECK(reader.endpoint->usable());
}

TEST_CASE("a source that died before its region was asked for: peer lost") {
  const source_process source{};
  reading_side reader{};
  reader.connect(source.address);
  source.signal(SIGKILL);
  CHECK(reader.read(source, 8) == counts{{completion_status::peer_lost, 8}});
  CHECK(!reader.endpoint->usable());
}

TEST_CASE("a killed source whose child still holds its sockets is lost all the same") {
  const source_process source{};
  reading_side reader{};
  reader.connect(source.address);
  CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
  source.order('f');  // the child inherits the connection: only the process itself can tell
  source.signal(SIGKILL);
  CHECK(reader.read(source) == counts{{completion_status::peer_lost, 1}});
  CHECK(reader.try_to_connect(source.address, 300ms).first != errc::ok);
}

TEST_CASE("revoked in another process in the middle of a read: no byte of later counts") {
  for (const memory_of_source memory : {memory_of_source::sealed_file, memory_of_source::plain}) {
    for (int polls = 0; polls < 4; ++polls) {
      CAPTURE(static_cast<int>(memory));
      CAPTURE(polls);
      const source_process source{{.memory = memory}};
      reading_side reader{};
      reader.connect(source.address);
      CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
      reader.post_all(source.region, 1);
      std::array<completion, 1> done;
      counts ended;
      for (int i = 0; i < polls && ended.empty(); ++i) {
        if (reader.queue.poll(done) == 1) ++ended[done[0].status];
      }
      source.order('r');
      for (const auto& [status, count] : reader.drain()) ended[status] += count;
      const bool was_early = ended == counts{{completion_status::ok, 1}} && reader.has_the_bytes();
      CHECK((was_early || ended == counts{{completion_status::access_denied, 1}}));
      CHECK(reader.read(source) == counts{{completion_status::access_denied, 1}});
      CHECK(reader.endpoint->usable());
    }
  }
}

TEST_CASE("a stopped source: what is known is read on, everything else ends by a time-out") {
  const source_process source{};
  reading_side reader{{.peer_timeout = 700ms}};
  reader.connect(source.address);
  CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
  reader.endpoint.reset();
  reading_side other{{.peer_timeout = 700ms}};
  other.connect(source.address);
  source.signal(SIGSTOP);
  reader.connect(source.address);  // over the connection that was kept
  CHECK(reader.read(source) == counts{{completion_status::ok, 1}});
  CHECK(reader.has_the_bytes());
  CHECK(other.read(source, 8) == counts{{completion_status::peer_lost, 8}});
  CHECK(!other.endpoint->usable());
  reading_side third{};
  CHECK(third.try_to_connect(source.address, 300ms).first == errc::timed_out);
}

TEST_CASE("a source that copies what is read: the bytes arrive, until it is stopped, revokes or is killed") {
  const auto options = same_host::options::for_tenants();
  for (const memory_of_source memory : {memory_of_source::sealed_file, memory_of_source::plain}) {
    CAPTURE(static_cast<int>(memory));
    const source_process source{{.memory = memory, .options = options}};
    const source_process second{{.memory = memory, .options = options}};
    reading_side reader{{.peer_timeout = 700ms}};
    reader.connect(source.address);
    CHECK(reader.read(source, 3) == counts{{completion_status::ok, 3}});
    CHECK(reader.has_the_bytes());
    CHECK(reader.endpoint->why().find("lets nobody attach") != std::string::npos);
    source.signal(SIGSTOP);
    CHECK(reader.read(source, 8) == counts{{completion_status::peer_lost, 8}});
    reader.connect(second.address);
    CHECK(reader.read(second) == counts{{completion_status::ok, 1}});
    second.order('r');
    CHECK(reader.read(second) == counts{{completion_status::access_denied, 1}});
    CHECK(reader.endpoint->usable());
    second.signal(SIGKILL);
    CHECK(reader.read(second) == counts{{completion_status::peer_lost, 1}});
  }
}

TEST_CASE("another process than the expected one is refused by name") {
  const source_process replaced{{.self = incarnation{99}}};
  reading_side reader{};
  const auto [code, sentence] = reader.try_to_connect(replaced.address);
  CHECK(code == errc::transport_failed);
  CHECK(sentence.find("another process") != std::string::npos);
  CHECK(sentence.find(tensorhub::to_hex(source_id)) != std::string::npos);
}

TEST_CASE("addresses of another machine or container are refused at once") {
  const source_process source{};
  reading_side reader{};
  const std::string own = source.address.text;
  std::string other_machine = own;
  other_machine[std::string{"same-host://"}.size()] ^= 1;
  const auto far = reader.try_to_connect({other_machine});
  CHECK(far.first == errc::transport_failed);
  CHECK(far.second.find("another machine") != std::string::npos);
  std::string other_container = own;
  other_container.insert(own.rfind('/'), "7");
  const auto near = reader.try_to_connect({other_container});
  CHECK(near.first == errc::transport_failed);
  CHECK(near.second.find("another container") != std::string::npos);
}

TEST_CASE("a source whose memory the kernel protects: connect says why; its files can be read all the same") {
  // Root may attach to every process, so both sides become an ordinary user, if they are not one already.
  const std::optional<uid_t> user = ::geteuid() == 0 ? std::optional{nobody} : std::nullopt;
  const source_process hidden{{.user = user, .dumpable = false}};
  const source_process open{{.memory = memory_of_source::plain, .user = user}};
  const source_process plain{{.memory = memory_of_source::plain, .user = user, .dumpable = false}};
  const int result = as_user(user, [&] {
    reading_side reader{};
    const auto [code, sentence] = reader.try_to_connect(hidden.address);
    std::cout << "same_host, a source that is not dumpable: " << sentence << std::endl;
    if (code != errc::transport_failed) return 1;
    if (sentence.find("forbids") == std::string::npos) return 2;
    if (sentence.find("dumpable") == std::string::npos && sentence.find("Yama") == std::string::npos)
      return 3;
    reading_side files_only{{.attach = memory_attach::never}};
    files_only.connect(hidden.address);
    if (files_only.read(hidden) != counts{{completion_status::ok, 1}} || !files_only.has_the_bytes())
      return 4;
    files_only.connect(plain.address);
    if (files_only.read(plain) != counts{{completion_status::local_error, 1}}) return 5;
    // The control: the same user and a source that may be attached to (if Yama is not in the way).
    const auto control = reader.try_to_connect(open.address);
    return control.first == errc::ok || control.second.find("Yama") != std::string::npos ? 0 : 6;
  });
  CHECK(result == 0);
}

TEST_CASE("another user is refused, by both sides, unless it is allowed") {
  if (!other_users::may_become("conformance.same_host_process")) return;
  // The reader is another user than the source.
  const source_process ours{};
  const source_process generous{{.options = {.allowed_uids = {nobody}}}};
  // A file of the user's own is offered to another user only if that user could read it anyway.
  const source_process open_file{
      {.memory = memory_of_source::loose_file, .options = {.allowed_uids = {nobody}}}};
  const source_process private_file{
      {.memory = memory_of_source::private_file, .options = {.allowed_uids = {nobody}}}};
  const source_process copying{{.memory = memory_of_source::private_file,
                                .options = {.attach = memory_attach::never, .allowed_uids = {nobody}}}};
  const int result = as_user(nobody, [&] {
    reading_side reader{};
    const auto [code, sentence] = reader.try_to_connect(ours.address);
    std::cout << "same_host, a source of another user: " << sentence << std::endl;
    if (code != errc::transport_failed || sentence.find("user 0") == std::string::npos) return 1;
    // The reader trusts that user, the source does not.
    reading_side trusting{{.allowed_uids = {0}}};
    reading_side files_only{{.attach = memory_attach::never, .allowed_uids = {0}}};
    const auto second = files_only.try_to_connect(ours.address);
    std::cout << "same_host, a reader of another user: " << second.second << std::endl;
    if (second.first != errc::transport_failed || second.second.find("user 65534 in") == std::string::npos)
      return 2;
    // Both agree, but the kernel forbids to attach.
    const auto third = trusting.try_to_connect(generous.address);
    std::cout << "same_host, users that trust each other: " << third.second << std::endl;
    if (third.first != errc::transport_failed || third.second.find("CAP_SYS_PTRACE") == std::string::npos)
      return 3;
    files_only.connect(generous.address);
    if (files_only.read(generous) != counts{{completion_status::ok, 1}}) return 4;
    files_only.connect(open_file.address);
    if (files_only.read(open_file) != counts{{completion_status::ok, 1}}) return 5;
    files_only.connect(private_file.address);
    if (files_only.read(private_file) != counts{{completion_status::local_error, 1}}) return 6;
    // A source that lets nobody attach copies what it cannot show.
    trusting.connect(copying.address);
    return trusting.read(copying) == counts{{completion_status::ok, 1}} && trusting.has_the_bytes() ? 0 : 7;
  });
  CHECK(result == 0);
}
