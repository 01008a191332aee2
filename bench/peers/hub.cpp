// The drivers of bench/peers for TensorHub, and for the bare loops that it is measured against. (compare.py
// starts them; driver.hpp has the protocol.)

#include <arpa/inet.h>
#include <sys/uio.h>

#include <algorithm>
#include <optional>
#include <tensorhub/detail/unique_fd.hpp>
#include <tensorhub/policy/integrity/none.hpp>
#include <tensorhub/server.hpp>
#include <tensorhub/tensorhub.hpp>
#include <tensorhub/transports/same_host.hpp>
#include <tensorhub/transports/tcp.hpp>
#include <thread>

#include "../bare_tcp.hpp"
#include "driver.hpp"

namespace {

using namespace bench::peers;
using tensorhub::detail::unique_fd;
using tensorhub::transports::same_host;
using tensorhub::transports::tcp;

// ---- TensorHub

template <typename Transport>
typename Transport::options through(const settings& given) {
  if constexpr (std::is_same_v<Transport, tcp>)
    return {.congestion_control = given.control};
  else
    return {};
}

tensorhub::worker_options named(const std::string& server, const std::string& replica) {
  tensorhub::worker_options out;
  out.server = server;
  out.model = "policy";
  out.replica = replica;
  return out;
}

/// The trainer, with the reference server in its process.
template <typename Hub, typename Transport>
class hub_source {
 public:
  explicit hub_source(const settings& given)
      : trainer_{named(server_.address(), "trainer"), through<Transport>(given)} {
    std::byte* const data = map_memory(given);
    if (given.who == "tensorhub_mapped") {
      const unique_fd file{::open(given.memory.c_str(), O_RDWR | O_CLOEXEC)};
      known_.emplace(data, given.bytes, file.get(), 0);
    }
    trainer_.add("weights", data, {given.bytes}, tensorhub::dtype::u8);
    trainer_.join();
  }
  [[nodiscard]] std::string address() const { return server_.address(); }
  void publish(std::uint64_t version) { trainer_.publish(version); }
  void read(std::uint64_t) {}
  void release() { trainer_.unpublish(); }

 private:
  std::optional<tensorhub::file_mapping> known_;
  typename Hub::reference_server server_;
  typename Hub::publisher trainer_;
};

template <typename Hub, typename Transport>
class hub_reader {
 public:
  explicit hub_reader(const settings& given)
      : rollout_{named(given.source, "rollout-" + given.index), through<Transport>(given)} {
    rollout_.add("weights", map_memory(given), {given.bytes}, tensorhub::dtype::u8);
    rollout_.join();
  }
  [[nodiscard]] std::string address() const { return "-"; }
  void publish(std::uint64_t) {}
  void read(std::uint64_t version) { rollout_.update(tensorhub::exactly(version)); }
  void release() { rollout_.unpublish(); }

 private:
  typename Hub::subscriber rollout_;
};

// ---- the bare loops

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  out.sin_port = htons(port);
  return out;
}

unique_fd make_socket(const std::string& control) {
  unique_fd out{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (::setsockopt(out.get(), IPPROTO_TCP, TCP_CONGESTION, control.data(),
                   static_cast<socklen_t>(control.size())) != 0)
    throw std::runtime_error("the kernel does not give " + control);
  return out;
}

/// A thread per reader writes everything when the reader asks by one byte. The same host's readers need no
/// more than the address of the memory.
class bare_source {
 public:
  explicit bare_source(const settings& given) : data_{map_memory(given)}, bytes_{given.bytes} {
    if (given.is_same_host()) {
      address_ = std::to_string(::getpid()) + ":" + std::to_string(reinterpret_cast<std::uintptr_t>(data_));
      return;
    }
    listener_ = make_socket(given.control);
    sockaddr_in at = loopback(0);
    socklen_t length = sizeof at;
    if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), length) != 0 ||
        ::listen(listener_.get(), 16) != 0 ||
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
      throw std::runtime_error("the bare source cannot listen");
    address_ = std::to_string(ntohs(at.sin_port));
    std::thread{[this] { accept_all(); }}.detach();  // ends with its process
  }
  [[nodiscard]] std::string address() const { return address_; }
  void publish(std::uint64_t) {}
  void read(std::uint64_t) {}
  void release() {}

 private:
  void accept_all() const {
    for (;;) {
      const int socket = ::accept(listener_.get(), nullptr, nullptr);
      if (socket < 0) return;
      std::thread{[this, socket] {
        const unique_fd owner{socket};
        std::byte asked{};
        while (bench::receive_all(socket, &asked, 1) && bench::send_all(socket, data_, bytes_)) {
        }
      }}.detach();
    }
  }
  std::byte* data_;
  std::size_t bytes_;
  std::string address_;
  unique_fd listener_;
};

class bare_reader {
 public:
  explicit bare_reader(const settings& given) : data_{map_memory(given)}, bytes_{given.bytes} {
    if (given.is_same_host()) {
      const auto colon = given.source.find(':');
      source_ = static_cast<pid_t>(std::stol(given.source.substr(0, colon)));
      theirs_ = std::stoull(given.source.substr(colon + 1));
      return;
    }
    socket_ = make_socket(given.control);
    const sockaddr_in at = loopback(static_cast<std::uint16_t>(std::stoul(given.source)));
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
      throw std::runtime_error("the bare reader cannot connect");
  }
  [[nodiscard]] std::string address() const { return "-"; }
  void publish(std::uint64_t) {}
  void release() {}
  void read(std::uint64_t) {
    if (source_ != 0) return copy();
    const std::byte ask{1};
    if (!bench::send_all(socket_.get(), &ask, 1) || !bench::receive_all(socket_.get(), data_, bytes_))
      throw std::runtime_error("the bare source has ended");
  }

 private:
  void copy() const {
    for (std::size_t done = 0; done < bytes_;) {
      const iovec into{data_ + done, std::min<std::size_t>(bytes_ - done, 1u << 20)};
      const iovec from{reinterpret_cast<void*>(theirs_ + done), into.iov_len};
      const auto taken = ::process_vm_readv(source_, &into, 1, &from, 1, 0);
      if (taken <= 0) throw std::runtime_error("process_vm_readv is not permitted");
      done += static_cast<std::size_t>(taken);
    }
  }
  std::byte* data_;
  std::size_t bytes_;
  pid_t source_ = 0;
  std::uintptr_t theirs_ = 0;
  unique_fd socket_;
};

// ---- which

template <typename Source, typename Reader>
void run_as(const settings& given) {
  if (given.is_source()) {
    Source driver{given};
    serve(driver);
  } else {
    Reader driver{given};
    serve(driver);
  }
}
template <typename Transport, typename Integrity>
void run_hub(const settings& given) {
  using hub = tensorhub::hub<Transport, Integrity>;
  run_as<hub_source<hub, Transport>, hub_reader<hub, Transport>>(given);
}
template <typename Integrity>
void run_over_path(const settings& given) {
  given.is_same_host() ? run_hub<same_host, Integrity>(given) : run_hub<tcp, Integrity>(given);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const settings given = settings::of(argc, argv);
    if (given.who == "bare")
      run_as<bare_source, bare_reader>(given);
    else if (given.who == "tensorhub_none")
      run_over_path<tensorhub::no_integrity>(given);
    else
      run_over_path<tensorhub::xxh3_128>(given);
  } catch (const std::exception& e) {
    std::cerr << "bench_peers_hub: " << e.what() << std::endl;
    return 1;
  }
}
