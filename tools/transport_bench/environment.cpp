#include "environment.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <tensorhub/version.hpp>

#ifndef TRANSPORT_BENCH_GIT
#define TRANSPORT_BENCH_GIT ""
#endif
#ifndef TRANSPORT_BENCH_BUILD_TYPE
#define TRANSPORT_BENCH_BUILD_TYPE ""
#endif

namespace transport_bench {

namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream in{path};
  std::string line;
  std::getline(in, line);
  return line;
}

/// The value of the first line "key : value" or "key value".
std::string value_in(const char* path, std::string_view key) {
  std::ifstream in{path};
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto at = line.find_first_not_of(" \t:", key.size());
    return at == std::string::npos ? std::string{} : line.substr(at);
  }
  return {};
}

/// The network interface that has this address; empty if none.
std::string interface_of(std::string_view host) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner{list, &::freeifaddrs};
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const auto length =
        static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (::getnameinfo(each->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0 &&
        host == text.data())
      return each->ifa_name;
  }
  return {};
}

std::string network_of(std::string_view host) {
  const std::string name = interface_of(host);
  if (name.empty()) return "unknown interface";
  const fs::path folder = fs::path{"/sys/class/net"} / name;
  std::string out = name;
  const std::string speed = first_line(folder / "speed");  // Mbit/s; -1 or unreadable where there is no cable
  if (!speed.empty() && speed[0] != '-') out += ", " + speed + " Mbit/s";
  if (const std::string mtu = first_line(folder / "mtu"); !mtu.empty()) out += ", MTU " + mtu;
  std::error_code ignored;
  const fs::path driver = fs::read_symlink(folder / "device" / "driver", ignored);
  if (!driver.empty()) out += ", driver " + driver.filename().string();
  return out;
}

std::string rdma_devices() {
  std::string out;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator{"/sys/class/infiniband", ignored}) {
    out += (out.empty() ? "" : "; ") + device.path().filename().string();
    for (const auto& port : fs::directory_iterator{device.path() / "ports", ignored}) {
      out += ", port " + port.path().filename().string() + " " + first_line(port.path() / "rate");
      if (const std::string layer = first_line(port.path() / "link_layer"); !layer.empty())
        out += " " + layer;
      if (const std::string state = first_line(port.path() / "state"); !state.empty()) out += " " + state;
    }
  }
  return out;
}

}  // namespace

facts machine_facts(std::string_view host) {
  facts out;
  std::string processor = value_in("/proc/cpuinfo", "model name");
  if (processor.empty()) processor = value_in("/proc/cpuinfo", "vendor_id");
  if (processor.empty()) processor = "unknown";
  out.emplace_back("cpu", processor);
  out.emplace_back("cores", std::to_string(::sysconf(_SC_NPROCESSORS_ONLN)));
  const auto kilobytes = std::strtoull(value_in("/proc/meminfo", "MemTotal:").c_str(), nullptr, 10);
  out.emplace_back("memory", std::to_string(kilobytes >> 10) + " MiB");
  utsname system{};
  if (::uname(&system) == 0)
    out.emplace_back("kernel", std::string{system.sysname} + " " + system.release + " " + system.machine);
  out.emplace_back("network", network_of(host));
  if (const std::string control = first_line("/proc/sys/net/ipv4/tcp_congestion_control"); !control.empty())
    out.emplace_back("tcp", control);
  if (const std::string devices = rdma_devices(); !devices.empty()) out.emplace_back("rdma", devices);
  return out;
}

facts program_facts() {
  facts out;
  out.emplace_back("version", std::string{tensorhub::version_string});
  if (TRANSPORT_BENCH_GIT[0] != '\0') out.emplace_back("git", TRANSPORT_BENCH_GIT);
#if defined(__clang__)
  out.emplace_back("compiler",
                   "clang " + std::to_string(__clang_major__) + "." + std::to_string(__clang_minor__));
#else
  out.emplace_back("compiler", "g++ " + std::to_string(__GNUC__) + "." + std::to_string(__GNUC_MINOR__));
#endif
  if (TRANSPORT_BENCH_BUILD_TYPE[0] != '\0') out.emplace_back("build", TRANSPORT_BENCH_BUILD_TYPE);
  return out;
}

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

unsigned long long available_memory_bytes() {
  return std::strtoull(value_in("/proc/meminfo", "MemAvailable:").c_str(), nullptr, 10) << 10;
}

}  // namespace transport_bench
