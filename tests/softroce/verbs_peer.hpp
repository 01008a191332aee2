#pragma once
// A source in another process, which does what the test tells it.
//
// The process is this program once more, started anew: the libraries under verbs do not survive a fork. It
// runs the (otherwise skipped) test case "the other process", with one end of a socket as descriptor 3.

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <tensorhub/types/ids.hpp>
#include <tensorhub/types/memory.hpp>

#include "../process_signal.hpp"

namespace softroce_tests {

enum class peer_action : std::uint64_t {
  start_source,  ///< listens at `address`:`port` as `self` and registers `bytes` bytes of ones
  revoke,
  deregister,
  cut_off,       ///< reader `self`
  read_forever,  ///< connects to `address` as `self` and reads `region`; answers when it has begun
  lock_little,   ///< gives up root, may lock `bytes` bytes, and registers 64 times as much
};

struct peer_order {
  peer_action action{};
  tensorhub::incarnation self{};
  tensorhub::incarnation source{};
  std::uint64_t bytes = 0;
  std::uint16_t port = 0;
  std::array<char, 256> address{};
  tensorhub::remote_region region{};
};

struct peer_answer {
  std::uint64_t value = 0;
  std::array<char, 1024> text{};  ///< address, or a sentence
  tensorhub::remote_region region{};
};

template <typename Text>
void set_text(Text& into, const std::string& from) {
  into = {};
  from.copy(into.data(), into.size() - 1);
}

class peer_process {
 public:
  static constexpr int socket_of_peer = 3;

  peer_process() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
      throw std::runtime_error("no socket");
    socket_ = ends[0];
    const timeval longest{30, 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    id_ = ::fork();
    if (id_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (ends[1] == socket_of_peer || ::dup2(ends[1], socket_of_peer) != socket_of_peer) ::_exit(98);
      ::execl("/proc/self/exe", "peer", "--no-skip", "--test-case=the other process", "--minimal", nullptr);
      ::_exit(97);
    }
    ::close(ends[1]);
    if (id_ < 0) throw std::runtime_error("no process");
  }
  ~peer_process() {
    kill();
    ::close(socket_);
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;

  /// Throws if there is no answer within 30 s.
  peer_answer ask(const peer_order& order) {
    peer_answer answer;
    if (::send(socket_, &order, sizeof order, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof order) ||
        ::recv(socket_, &answer, sizeof answer, 0) != static_cast<ssize_t>(sizeof answer))
      throw std::runtime_error("the other process does not answer");
    return answer;
  }

  void signal(int number) const { signal_process(id_, number); }
  /// The process is gone, with all that the kernel kept for it, when this returns.
  void kill() {
    if (id_ < 0) return;
    signal(SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }

 private:
  pid_t id_ = -1;
  int socket_ = -1;
};

}  // namespace softroce_tests
