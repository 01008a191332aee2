#pragma once
/// \file emulated_path.hpp
/// A long network path on one machine: two network namespaces, joined by a process that carries the packets
/// between their two TUN devices, at a given rate and with a given delay.
///
/// The kernel's TCP runs over it as over a real path: slow start, windows, retransmission, and connections
/// that take a round trip. Packets wait in a queue of one bandwidth-delay product, as in a router; what does
/// not fit is dropped. Segments travel in groups, as between a kernel and its network card (`TUN_F_TSO4`).
///
/// Needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN. Source of the ioctls: Linux,
/// Documentation/networking/tuntap.rst and drivers/net/tun.c.

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/child_process.hpp"
#include "tensorhub/detail/unique_fd.hpp"

namespace bench {

struct path_settings {
  double bytes_per_second = 125e6;  ///< each way
  std::chrono::nanoseconds round_trip = std::chrono::milliseconds{100};
  double loss = 0;  ///< share of the packets, at random; packets then travel one by one
};

/// Either end of the path. Address of an end: `address_of`.
enum class path_end : std::size_t { here = 0, there = 1 };
[[nodiscard]] inline const char* address_of(path_end end) {
  return end == path_end::here ? "10.77.0.1" : "10.77.0.2";
}

class emulated_path {
 public:
  /// Pre-condition: this process has one thread.
  explicit emulated_path(const path_settings& settings)
      : carrier_{[settings](processes::channel& line) { carry(line, settings); }} {
    for (std::string& each : namespaces_) each = carrier_.line().hear(std::chrono::seconds{10});
  }

  /// Empty: this process may make such paths.
  [[nodiscard]] static std::string why_not() {
    processes::child_process trial{[](processes::channel& line) {
      try {
        const end_device device{path_end::here, true};
        line.say("yes");
      } catch (const std::exception& e) {
        line.say(e.what());
      }
    }};
    const std::string answer = trial.line().hear(std::chrono::seconds{10});
    return answer == "yes" ? std::string{} : answer;
  }

  /// The calling thread, and what it starts from now on, is at this end. For child processes.
  void enter(path_end end) const {
    const tensorhub::detail::unique_fd name{
        ::open(namespaces_[static_cast<std::size_t>(end)].c_str(), O_RDONLY | O_CLOEXEC)};
    check(::setns(name.get(), CLONE_NEWNET), "entering a network namespace");
  }

 private:
  using clock = std::chrono::steady_clock;

  static void check(int result, const std::string& what) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  }

  /// The calling thread moves to a namespace of its own, with a TUN device and the loopback.
  class end_device {
   public:
    end_device(path_end end, bool groups) {
      check(::unshare(CLONE_NEWNET), "a network namespace of its own");
      tun_ = tensorhub::detail::unique_fd{::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC)};
      check(tun_.get(), "opening /dev/net/tun");
      ifreq device{};
      std::strcpy(device.ifr_name, "path");
      device.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
      check(::ioctl(tun_.get(), TUNSETIFF, &device), "a TUN device");
      check(::ioctl(tun_.get(), TUNSETOFFLOAD, TUN_F_CSUM | (groups ? TUN_F_TSO4 : 0u)), "TUN_F_TSO4");
      const tensorhub::detail::unique_fd control{::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
      auto& address = reinterpret_cast<sockaddr_in&>(device.ifr_addr);
      address = {};
      address.sin_family = AF_INET;
      ::inet_pton(AF_INET, address_of(end), &address.sin_addr);
      check(::ioctl(control.get(), SIOCSIFADDR, &device), "an address of a TUN device");
      ::inet_pton(AF_INET, "255.255.255.0", &address.sin_addr);
      check(::ioctl(control.get(), SIOCSIFNETMASK, &device), "a network of a TUN device");
      raise(control.get(), "path");
      raise(control.get(), "lo");
    }
    [[nodiscard]] int get() const noexcept { return tun_.get(); }

   private:
    static void raise(int control, const char* name) {
      ifreq device{};
      std::strcpy(device.ifr_name, name);
      device.ifr_flags = IFF_UP | IFF_RUNNING;
      check(::ioctl(control, SIOCSIFFLAGS, &device), std::string{"raising "} + name);
    }
    tensorhub::detail::unique_fd tun_{};
  };

  /// What is on its way from one end to the other.
  class direction {
   public:
    direction(int from, int to, const path_settings& settings)
        : from_{from}, to_{to}, settings_{settings}, lost_{settings.loss} {}

    void take() {
      std::vector<char> taken(virtio_header_bytes + 65'536);
      for (;;) {
        const auto bytes = ::read(from_, taken.data(), taken.size());
        if (bytes <= 0) return;
        const auto now = clock::now();
        const auto begins = std::max(now, free_at_);
        if (begins - now > settings_.round_trip) continue;  // the queue is full
        if (settings_.loss > 0 && lost_(random_)) continue;
        const std::span group{taken.data(), static_cast<std::size_t>(bytes)};
        free_at_ = begins + std::chrono::nanoseconds{static_cast<std::int64_t>(wire_bytes(group) * 1e9 /
                                                                               settings_.bytes_per_second)};
        waiting_.push_back({free_at_ + settings_.round_trip / 2, {group.begin(), group.end()}});
      }
    }
    void deliver() {
      while (!waiting_.empty() && waiting_.front().due <= clock::now()) {
        const std::vector<char>& bytes = waiting_.front().bytes;
        static_cast<void>(::write(to_, bytes.data(), bytes.size()));  // a device without room drops it
        waiting_.pop_front();
      }
    }
    [[nodiscard]] clock::time_point due() const {
      return waiting_.empty() ? clock::time_point::max() : waiting_.front().due;
    }

   private:
    static constexpr std::size_t virtio_header_bytes = 10;  ///< struct virtio_net_hdr

    /// Of a group of segments: each has the headers that the group has once.
    [[nodiscard]] static double wire_bytes(std::span<const char> group) {
      std::uint16_t header_bytes = 0, segment_bytes = 0;
      std::memcpy(&header_bytes, group.data() + 2, sizeof header_bytes);
      std::memcpy(&segment_bytes, group.data() + 4, sizeof segment_bytes);
      const std::size_t packet_bytes = group.size() - virtio_header_bytes;
      if (group[1] == 0 || segment_bytes == 0) return static_cast<double>(packet_bytes);
      const std::size_t segments = (packet_bytes - header_bytes + segment_bytes - 1) / segment_bytes;
      return static_cast<double>(packet_bytes + (segments - 1) * header_bytes);
    }
    struct packet {
      clock::time_point due;
      std::vector<char> bytes;
    };
    int from_, to_;
    path_settings settings_;
    std::bernoulli_distribution lost_;
    std::minstd_rand random_{1};
    clock::time_point free_at_{};
    std::deque<packet> waiting_;
  };

  /// The process that carries packets until it is killed.
  [[noreturn]] static void carry(const processes::channel& line, const path_settings& settings) {
    const end_device here{path_end::here, settings.loss == 0};
    const std::string task = "/proc/" + std::to_string(::getpid()) + "/task/";
    const std::string first = task + std::to_string(::gettid()) + "/ns/net";
    const tensorhub::detail::unique_fd kept{::open(first.c_str(), O_RDONLY)};
    line.say("/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(kept.get()));
    const end_device there{path_end::there, settings.loss == 0};
    line.say(task + std::to_string(::gettid()) + "/ns/net");
    direction out{here.get(), there.get(), settings}, back{there.get(), here.get(), settings};
    std::array<pollfd, 2> devices{pollfd{here.get(), POLLIN, 0}, pollfd{there.get(), POLLIN, 0}};
    for (;;) {
      const auto due = std::min({out.due(), back.due(), clock::now() + std::chrono::seconds{1}});
      const auto left = std::max<clock::duration>(due - clock::now(), clock::duration::zero());
      const timespec patience{std::chrono::duration_cast<std::chrono::seconds>(left).count(),
                              (left % std::chrono::seconds{1}).count()};
      ::ppoll(devices.data(), devices.size(), &patience, nullptr);
      out.take();
      back.take();
      out.deliver();
      back.deliver();
    }
  }

  processes::child_process carrier_;
  std::array<std::string, 2> namespaces_{};
};

}  // namespace bench
