// The same-host transport against other users of the host, and against processes that connect and say
// nothing.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <tensorhub/detail/local_socket.hpp>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/detail/unique_socket.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <vector>

#include "descriptor_shortage.hpp"
#include "other_user.hpp"
#include "source_process.hpp"

namespace {

using namespace std::chrono_literals;
namespace wire = tensorhub::transports::same_host_detail;
using other_users::nobody;
using processes::channel;
using processes::child_process;
using source_processes::reader_id;
using source_processes::source_id;
using tensorhub::region_access;
using tensorhub::detail::unique_fd;
using tensorhub::transports::same_host;

[[nodiscard]] std::size_t descriptors_of_this_process() {
  using files = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(files{"/proc/self/fd"}, files{}));
}

/// A packet of no bytes that brings two descriptors.
[[nodiscard]] bool send_empty_packet(int socket) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const std::array<int, 2> descriptors{socket, socket};
  std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof descriptors);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 0;
}

/// A process that connects `count` times to the sockets that it is told, says nothing, and answers with the
/// number of its connections.
struct silent_process {
  static constexpr int count = 300;
  child_process process;
  explicit silent_process(std::optional<uid_t> user)
      : process{[user](channel& line) { serve(line, user); }} {}

  [[nodiscard]] int connect_to(const same_host& source) const {
    std::array<char, 128> name{};
    wire::host_address::parse(source.address().text)->socket.copy(name.data(), name.size() - 1);
    process.line().tell(name);
    return process.line().take<int>();
  }

 private:
  static void serve(const channel& line, std::optional<uid_t> user) {
    if (user && (::setresgid(*user, *user, *user) != 0 || ::setresuid(*user, *user, *user) != 0))
      std::_Exit(4);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<tensorhub::detail::unique_socket> sockets;
    for (std::array<char, 128> name{}; line.try_take(name, 60s);) {
      int made = 0;
      for (; made < count; ++made)
        sockets.push_back(wire::connect_to(name.data(), name.data(), wire::clock::now() + 20s));
      line.tell(made);
    }
    std::_Exit(0);
  }
};

/// A reader that asks for regions that there are not, and learns when the source has sent each answer.
class asking_reader {
 public:
  asking_reader(const wire::source& source, tensorhub::incarnation self)
      : socket_{wire::connect_to(source.socket_name(), source.socket_name(), wire::clock::now() + 20s)} {
    const int on = 1;
    REQUIRE(::setsockopt(socket_.get(), SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on) == 0);
    wire::hello greeting;
    greeting.reader = self.value;
    greeting.source = source_id.value;
    REQUIRE(wire::send_packet(socket_.get(), greeting));
    wire::welcome answer;
    static_cast<void>(take(&answer, sizeof answer));
    REQUIRE(answer.status == wire::welcome_status::accepted);
  }
  void ask() const { REQUIRE(wire::send_packet(socket_.get(), wire::region_request{})); }
  [[nodiscard]] std::chrono::nanoseconds next_answer() const {
    wire::region_answer answer;
    return take(&answer, sizeof answer);
  }

 private:
  /// When the packet was sent; the descriptor that may come with it is not received.
  [[nodiscard]] std::chrono::nanoseconds take(void* packet, std::size_t bytes) const {
    pollfd entry{socket_.get(), POLLIN, 0};
    REQUIRE(::poll(&entry, 1, 20'000) == 1);
    iovec piece{packet, bytes};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(timespec))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    REQUIRE(::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) == static_cast<ssize_t>(bytes));
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    REQUIRE(header != nullptr);
    timespec sent{};
    std::memcpy(&sent, CMSG_DATA(header), sizeof sent);
    return std::chrono::seconds{sent.tv_sec} + std::chrono::nanoseconds{sent.tv_nsec};
  }

  tensorhub::detail::unique_socket socket_;
};

/// An honest reader connects. Connections are accepted in turn, so all earlier ones have been by then.
[[nodiscard]] std::string trouble_of_a_reader(const same_host& source,
                                              const same_host::options& options = {}) {
  same_host through{options, reader_id};
  auto queue = through.make_queue(4);
  try {
    const auto endpoint = through.connect(queue, source.address(), source_id, 20s);
    return endpoint.usable() ? "" : "not usable";
  } catch (const tensorhub::error& e) {
    return e.what();
  }
}

}  // namespace

TEST_CASE("connections of another user take no descriptors of a source") {
  if (!other_users::may_become("conformance.same_host_strangers")) return;
  const silent_process stranger{nobody};
  const same_host source{{}, source_id};
  const std::size_t before = descriptors_of_this_process();
  REQUIRE(stranger.connect_to(source) == silent_process::count);
  CHECK(trouble_of_a_reader(source) == "");
  CHECK(descriptors_of_this_process() < before + 50);
}

TEST_CASE("a user without a number in the user namespace is another one, unless it is allowed") {
  if (!other_users::may_become("conformance.same_host_strangers")) return;
  namespace local = tensorhub::detail::local;
  std::string map;
  std::getline(std::ifstream{"/proc/self/uid_map"}, map);
  const bool is_first = map.find("4294967295") != std::string::npos;
  for (const uid_t user : {nobody, uid_t{1001}}) {
    CAPTURE(user);
    const int result = other_users::as_user(user, [&] {
      // In the first namespace it is a user like others.
      if (is_first && !local::may_talk(user, {})) return 1;
      if (::unshare(CLONE_NEWUSER) != 0) return 77;
      if (::geteuid() != nobody || local::may_talk(nobody, {}) || !local::may_talk(nobody, {nobody}))
        return 2;
      const same_host source{{}, source_id};
      const std::string trouble = trouble_of_a_reader(source);
      std::cout << "same_host, a user namespace without numbers: " << trouble << std::endl;
      if (trouble.find("has no number in this user namespace") == std::string::npos) return 3;
      const same_host allowing{{.allowed_uids = {nobody}}, source_id};
      return trouble_of_a_reader(allowing, {.allowed_uids = {nobody}}).empty() ? 0 : 4;
    });
    if (result == 77)
      std::cout << "SKIPPED: conformance.same_host_strangers: no user namespace can be made here\n";
    else
      CHECK(result == 0);
  }
}

TEST_CASE("descriptors that come with a packet of no bytes are closed") {
  namespace local = tensorhub::detail::local;
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const unique_fd sender{ends[0]};
  const unique_fd receiver{ends[1]};
  const std::size_t before = descriptors_of_this_process();
  for (int i = 0; i < 50; ++i) {
    REQUIRE(send_empty_packet(sender.get()));
    wire::hello packet;
    unique_fd descriptor;
    REQUIRE(local::receive_packet(receiver.get(), packet, descriptor) == local::packet_outcome::ended);
  }
  CHECK(descriptors_of_this_process() == before);
}

TEST_CASE("connections that say nothing give way to readers") {
  const silent_process silent{std::nullopt};
  const same_host source{{.max_connections = 8}, source_id};
  const std::size_t before = descriptors_of_this_process();
  REQUIRE(silent.connect_to(source) == silent_process::count);
  CHECK(trouble_of_a_reader(source) == "");
  CHECK(descriptors_of_this_process() < before + 50);
  // Readers do not: the ninth learns why it is refused.
  same_host through{{.kept_connections = 0}, reader_id};
  auto queue = through.make_queue(4);
  std::vector<same_host::endpoint> endpoints;
  for (int i = 0; i < 8; ++i) endpoints.push_back(through.connect(queue, source.address(), source_id, 20s));
  CHECK(trouble_of_a_reader(source).find("raise its option max_connections") != std::string::npos);
}

TEST_CASE("a reader has so many connections, and the others have theirs") {
  const same_host source{{.max_connections_per_reader = 3}, source_id};
  same_host through{{.kept_connections = 0}, tensorhub::incarnation{reader_id.value + 1}};
  auto queue = through.make_queue(4);
  std::vector<same_host::endpoint> endpoints;
  const auto connect = [&] { endpoints.push_back(through.connect(queue, source.address(), source_id, 20s)); };
  for (int i = 0; i < 3; ++i) connect();
  CHECK_THROWS_WITH_AS(connect(), doctest::Contains("max_connections_per_reader"), tensorhub::error);
  CHECK(trouble_of_a_reader(source) == "");
  endpoints.pop_back();
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (endpoints.size() < 3 && std::chrono::steady_clock::now() < until) {
    try {
      connect();
    } catch (const tensorhub::error&) {  // the source has not heard yet that one is closed
    }
  }
  CHECK(endpoints.size() == 3);
}

TEST_CASE("connections take at most half of the descriptors that the process may have") {
  const silent_process silent{std::nullopt};
  rlimit usual{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &usual) == 0);
  rlimit few = usual;
  few.rlim_cur = descriptors_of_this_process() + 100;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  {
    const same_host source{{}, source_id};
    REQUIRE(silent.connect_to(source) == silent_process::count);
    CHECK(trouble_of_a_reader(source) == "");
  }
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &usual) == 0);
}

TEST_CASE(
    "same_host: a reader with many requests at once gets some answers, then the others have their turn") {
  std::binary_semaphore is_held{0}, may_go_on{0};
  std::atomic<bool> holds = true;
  wire::source source{{}, source_id, [&] {
                        if (!holds.exchange(false)) return;
                        is_held.release();
                        static_cast<void>(may_go_on.try_acquire_for(20s));
                      }};
  const asking_reader greedy{source, {77}}, honest{source, {78}};
  REQUIRE(is_held.try_acquire_for(20s));
  constexpr std::size_t asked = 150;  // of more answers a socket may not take all
  for (std::size_t i = 0; i < asked; ++i) greedy.ask();
  honest.ask();
  may_go_on.release();
  const auto of_honest = honest.next_answer();
  std::size_t earlier = 0;
  for (std::size_t i = 0; i < asked; ++i) earlier += greedy.next_answer() < of_honest ? 1 : 0;
  CHECK(earlier <= wire::requests_in_flight + wire::stage_slots);
}

TEST_CASE("same_host: a source that has had no descriptor for a reader accepts it soon when it has") {
  if (!shortages::may_be_total("conformance.same_host_strangers")) return;
  struct pair {
    same_host source{{}, source_id};
    same_host reader{{}, reader_id};
    same_host::queue queue = reader.make_queue(4);
  };
  const auto time = shortages::time_to_connect_after_shortage(
      [] { return std::make_unique<pair>(); },
      [](pair& both) {
        CHECK(both.reader.connect(both.queue, both.source.address(), source_id, 20s).usable());
      });
  CHECK(time < 500ms);  // so long a reader waits that has another source
}

TEST_CASE("a file that cannot be opened again for reading only is not offered") {
  if (!other_users::may_become("conformance.same_host_strangers")) return;
  wire::grant_page grants;
  wire::region_table regions{grants, {}};
  std::string path =
      std::filesystem::temp_directory_path() / ("tensorhub_conformance_" + std::string(6, 'X'));
  const unique_fd writable{::mkostemp(path.data(), O_CLOEXEC)};
  const unique_fd readable{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  ::unlink(path.c_str());
  REQUIRE(::ftruncate(writable.get(), 4096) == 0);
  std::array<std::byte, 64> memory{};
  const auto offered = [&](int descriptor) {
    ::setfsuid(nobody);  // this thread alone may open what `nobody` may open
    const auto region =
        regions.insert({memory.data(), memory.size(), tensorhub::memory_kind::host, descriptor, 0},
                       region_access::remote_read);
    ::setfsuid(0);
    const auto facts = regions.facts_of(region);
    const int flags = facts->file ? ::fcntl(facts->file->descriptor.get(), F_GETFL) & O_ACCMODE : -1;
    regions.erase(region);
    return flags;
  };
  CHECK(offered(writable.get()) == -1);
  CHECK(offered(readable.get()) == O_RDONLY);
  ::fchmod(writable.get(), 0644);
  CHECK(offered(writable.get()) == O_RDONLY);
}

TEST_CASE("same_host: a file is mapped once for all, and a mere path of it hides it from nobody") {
  const unique_fd file{::memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  REQUIRE(::ftruncate(file.get(), 8192) == 0);
  REQUIRE(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const std::string path = "/proc/self/fd/" + std::to_string(file.get());
  const auto opened = [&](int flags) { return unique_fd{::open(path.c_str(), flags | O_CLOEXEC)}; };
  wire::import_table table;
  const auto of_stranger = table.adopt(opened(O_PATH), true);  // of the same device and inode
  CHECK(of_stranger->data() == nullptr);
  const auto of_source = table.adopt(opened(O_RDONLY), true);
  CHECK(of_source->data() != nullptr);
  CHECK(table.adopt(opened(O_RDONLY), true) == of_source);
  CHECK(table.adopt(opened(O_PATH), true) == of_source);
}
