// A hub over the same-host transport: workers of one machine that read each other's memory.

#include <tensorhub/server.hpp>
#include <tensorhub/transports/same_host.hpp>

#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "hub.hpp"
#include "support/child_process.hpp"

using namespace processes;
using namespace system_tests;
using tensorhub::transports::same_host;

namespace {

using host_hub = tensorhub::hub<same_host>;
using gated_host_hub = tensorhub::hub<tensorhub::testing::gated<same_host>>;

/// A large and a small tensor, both in memory of files, as weights from `host_memory` are.
struct filed_weights {
  static constexpr std::size_t large_words = 300'001;
  static constexpr std::size_t small_words = 1000;
  tensorhub::host_memory::allocation memory{(large_words + small_words) * 8};

  [[nodiscard]] std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(memory.data()); }
  void fill(std::uint64_t version) const {
    for (std::size_t i = 0; i < large_words + small_words; ++i)
      words()[i] = (version * 1'000'003 + i) * 0x9e3779b97f4a7c15ull;
  }
  [[nodiscard]] bool holds(std::uint64_t version) const {
    for (std::size_t i = 0; i < large_words + small_words; ++i)
      if (words()[i] != (version * 1'000'003 + i) * 0x9e3779b97f4a7c15ull) return false;
    return true;
  }
  template <typename Worker>
  void add_to(Worker& worker) const {
    worker.add("large", words(), {large_words}, tensorhub::dtype::u64);
    worker.add("small", words() + large_words, {small_words}, tensorhub::dtype::u64);
  }
};

/// From now on the kernel refuses cross-memory attach to this process, as a container's profile does.
[[nodiscard]] bool forbid_attach() {
  std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA)),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return false;
  char here = 0, there = 1;
  const iovec into{&here, 1}, from{&there, 1};
  return ::process_vm_readv(::getpid(), &into, 1, &from, 1, 0) < 0 && errno == EPERM;
}

}  // namespace

TEST_CASE("same_host: versions arrive in place, from a trainer and then from a rollout") {
  host_hub::reference_server server;
  member<host_hub::subscriber> first{who(server.address(), "rollout-0")};
  member<host_hub::subscriber> second{who(server.address(), "rollout-1")};
  {
    member<host_hub::publisher> trainer{who(server.address(), "trainer-0")};
    for (std::uint64_t version = 1; version <= 3; ++version) {
      trainer.publish(version);
      CHECK(first.worker.update().version == version);
      CHECK(first.memory.holds(version));
      CHECK(!trainer.worker.unpublish().forced);
    }
    trainer.worker.leave();
  }
  const auto done = second.worker.update(exactly(3));
  CHECK(done.sources == std::vector<std::string>{"rollout-0/0"});
  CHECK(second.memory.holds(3));
}

TEST_CASE("same_host: a trainer in another process is killed while it is read: the reader is told, by name") {
  text_pipe pipe;
  child_process trainer_process{[&] {
    member<host_hub::publisher> trainer{who(pipe.hear(), "trainer-0")};
    trainer.publish(1);
    std::cout << "published" << std::endl;
    for (;;) ::pause();
    return 0;
  }};
  host_hub::reference_server server;
  const std::string address = server.address();
  pipe.tell(address);
  REQUIRE(trainer_process.output_line() == "published");
  const auto gate = std::make_shared<tensorhub::testing::read_gate>(1u << 20);
  member<gated_host_hub::subscriber> rollout{
      who(address, "rollout-0"), 300'001, {.inner = {.peer_timeout = 60s}, .gate = gate}};
  auto running = rollout.worker.update_async(exactly(1), 30s);
  REQUIRE(gate->wait_until_shut(20s));
  trainer_process.signal(SIGKILL);
  gate->open();
  std::string sentence;
  const errc code = code_of([&] { static_cast<void>(running.wait(35s)); }, &sentence);
  CHECK_MESSAGE((code == errc::unavailable || code == errc::source_lost), sentence);
  CHECK_MESSAGE(contains(sentence, "trainer-0"), sentence);
  CHECK(rollout.worker.held_version() == 0);
  {
    member<host_hub::publisher> next{who(address, "trainer-1")};
    next.publish(2);
    CHECK(rollout.worker.update(exactly(2), 30s).version == 2);
    CHECK(rollout.memory.holds(2));
    next.worker.leave();
  }
  // Who holds it is its own source now, for a reader that comes later.
  member<host_hub::subscriber> late{who(address, "rollout-1")};
  CHECK(late.worker.update(exactly(2), 30s).version == 2);
  CHECK(late.memory.holds(2));
}

TEST_CASE("same_host: a reader that may not attach to other processes updates all the same, and serves") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  child_process reader_process{[&] {
    if (!forbid_attach()) return 2;
    char text[128] = {};
    if (::read(ends[0], text, sizeof text - 1) <= 0) return 1;
    // Weights and control blocks lie in files, which are mapped.
    same_host::options files_only;
    files_only.attach = tensorhub::transports::memory_attach::never;
    const filed_weights memory, second_memory;
    host_hub::subscriber first{who(text, "rollout-0"), files_only};
    host_hub::subscriber second{who(text, "rollout-1"), files_only};
    memory.add_to(first);
    second_memory.add_to(second);
    // With the defaults, `connect` finds out that the kernel forbids it, and says so.
    std::string sentence;
    const filed_weights third_memory;
    host_hub::subscriber third{who(text, "rollout-2")};
    third_memory.add_to(third);
    if (code_of([&] { third.update(exactly(1), 3s); }, &sentence) == errc::ok) return 4;
    if (!contains(sentence, "forbids")) {
      std::cout << "not said: " << sentence << std::endl;
      return 6;
    }
    for (std::uint64_t version = 1; version <= 2; ++version) {
      if (first.update(at_least(version), 20s).version != version || !memory.holds(version)) return 3;
      std::cout << "updated" << std::endl;
    }
    if (second.update(exactly(2), 20s).version != 2 || !second_memory.holds(2)) return 5;
    std::cout << "both hold it" << std::endl;
    return 0;
  }};
  host_hub::reference_server server;
  const std::string address = server.address();
  const filed_weights memory;
  host_hub::publisher trainer{who(address, "trainer-0")};
  memory.add_to(trainer);
  memory.fill(1);
  trainer.publish(1);
  REQUIRE(::write(ends[1], address.data(), address.size()) == static_cast<ssize_t>(address.size()));
  CHECK(reader_process.output_line() == "updated");
  CHECK(!trainer.unpublish().forced);
  memory.fill(2);
  trainer.publish(2);
  CHECK(reader_process.output_line() == "updated");
  CHECK(reader_process.output_line() == "both hold it");
  CHECK(reader_process.wait() == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("same_host: memory that a reader may read in no way is an error that says what to do") {
  host_hub::reference_server server;
  weights at_trainer, at_rollout;  // some of them in memory of no file
  host_hub::publisher trainer{who(server.address(), "trainer-0")};
  host_hub::subscriber rollout{who(server.address(), "rollout-0"),
                               {.attach = tensorhub::transports::memory_attach::never}};
  at_trainer.add_to(trainer);
  at_rollout.add_to(rollout);
  at_trainer.fill(1);
  trainer.publish(1);
  std::string sentence;
  CHECK(code_of([&] { rollout.update(latest, 3s); }, &sentence) != errc::ok);
  CHECK_MESSAGE(contains(sentence, "local error"), sentence);
  CHECK_MESSAGE(contains(sentence, "let the source allocate it by host_memory"), sentence);
}

TEST_CASE(
    "same_host for tenants: the memory of trainers and rollouts is copied by them, and the report says so") {
  const same_host::options options = same_host::options::for_tenants();
  host_hub::reference_server server;
  const filed_weights at_trainer, at_rollout;
  host_hub::publisher trainer{who(server.address(), "trainer-0"), options};
  host_hub::subscriber rollout{who(server.address(), "rollout-0"), options};
  at_trainer.add_to(trainer);
  at_rollout.add_to(rollout);
  for (std::uint64_t version = 1; version <= 2; ++version) {
    at_trainer.fill(version);
    trainer.publish(version);
    const auto done = rollout.update(exactly(version), 20s);
    CHECK(at_rollout.holds(version));
    REQUIRE(done.paths.size() == 1);
    CHECK_MESSAGE(contains(done.paths.front(), "lets nobody attach"), done.paths.front());
    CHECK(!trainer.unpublish().forced);
  }
}
