#pragma once
/// \file driver.hpp
/// What the C++ drivers of bench/peers have in common: the memory that is given to them, and the lines that
/// `compare.py` says to them. driver.py is the same in Python.
///
///     publish N   the source offers the bytes that are in its memory now, as version N: "published"
///     read N      a reader brings version N into its own memory: "done T", T by the monotonic clock
///     release     both let go of the version, since the bytes will change: "released"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tensorhub/detail/unique_fd.hpp>

namespace bench::peers {

/// Command line of a driver: who, path, role, index, memory, bytes, congestion control, the source's address.
struct settings {
  std::string who, path, role, index, memory;
  std::size_t bytes = 0;
  std::string control, source{};

  [[nodiscard]] static settings of(int argc, char** argv) {
    if (argc < 8) throw std::runtime_error("this program is started by bench/peers/run");
    settings out{argv[1], argv[2], argv[3], argv[4], argv[5], std::stoull(argv[6]), argv[7]};
    if (argc > 8) out.source = argv[8];
    return out;
  }
  [[nodiscard]] bool is_source() const { return role == "source"; }
  [[nodiscard]] bool is_same_host() const { return path == "same_host"; }
};

/// A file that other drivers map as well; every page is touched. A mapping ends with its process.
[[nodiscard]] inline std::byte* map_memory(const settings& given) {
  const tensorhub::detail::unique_fd file{::open(given.memory.c_str(), O_RDWR | O_CLOEXEC)};
  void* const at =
      ::mmap(nullptr, given.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (at == MAP_FAILED) throw std::runtime_error("cannot map " + given.memory);
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // readers that are no children of ours may read
  return static_cast<std::byte*>(at);
}

[[nodiscard]] inline std::string now() {
  std::ostringstream out;
  out.precision(15);
  out << std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return out.str();
}

/// `Driver` has publish(n), read(n) and release().
template <typename Driver>
void obey(Driver& driver, const std::string& order) {
  std::istringstream in{order};
  std::string word;
  std::uint64_t version = 0;
  in >> word >> version;
  std::string answer = "released";
  if (word == "publish") {
    driver.publish(version);
    answer = "published";
  } else if (word == "read") {
    driver.read(version);
    answer = "done " + now();
  } else {
    driver.release();
  }
  std::cout << answer << std::endl;
}

/// Says the driver's address, and obeys until there are no more lines.
template <typename Driver>
void serve(Driver& driver) {
  std::cout << "ready " << driver.address() << std::endl;
  for (std::string order; std::getline(std::cin, order);) obey(driver, order);
}

}  // namespace bench::peers
