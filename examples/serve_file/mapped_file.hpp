#pragma once
/// \file mapped_file.hpp
/// A whole file in memory, shared with the page cache: the bytes that are published or received are the file.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tensorhub/memory/host.hpp>

namespace serve_file {

class mapped_file {
 public:
  /// An existing file, for reading.
  explicit mapped_file(const std::string& path)
      : mapped_file{path, ::open(path.c_str(), O_RDONLY | O_CLOEXEC), 0} {}
  /// A new file of this size, for writing; an existing one is replaced.
  mapped_file(const std::string& path, std::uint64_t bytes)
      : mapped_file{path, ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), bytes} {}
  ~mapped_file() {
    known_.reset();
    ::munmap(data_, bytes_);
    ::close(descriptor_);
  }
  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data(), bytes_}; }

 private:
  mapped_file(const std::string& path, int descriptor, std::uint64_t new_bytes) : descriptor_{descriptor} {
    const auto fail = [&](const std::string& what) {
      const std::string why = std::strerror(errno);
      if (descriptor_ >= 0) ::close(descriptor_);
      throw std::runtime_error(what + " '" + path + "': " + why);
    };
    if (descriptor_ < 0) fail("cannot open");
    struct stat facts {};
    if (new_bytes > 0 && !extend(new_bytes)) fail("cannot extend");
    if (::fstat(descriptor_, &facts) != 0) fail("cannot examine");
    bytes_ = static_cast<std::uint64_t>(facts.st_size);
    if (bytes_ == 0) {
      errno = ENODATA;
      fail("there is nothing in");
    }
    data_ = ::mmap(nullptr, bytes_, new_bytes > 0 ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                   descriptor_, 0);
    if (data_ == MAP_FAILED) fail("cannot map");
    known_.emplace(data_, bytes_, descriptor_, 0);  // lets the transport send from the page cache
  }

  /// Takes the space that the file needs: where a written page finds none later, SIGBUS ends the process.
  [[nodiscard]] bool extend(std::uint64_t bytes) const {
    do {
      errno = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
    } while (errno == EINTR);
    if (errno == EOPNOTSUPP || errno == EINVAL)  // this file system cannot tell
      return ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0;
    return errno == 0;
  }

  int descriptor_;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  std::optional<tensorhub::file_mapping> known_;
};

}  // namespace serve_file
