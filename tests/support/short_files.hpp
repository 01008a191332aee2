#pragma once
/// \file short_files.hpp
/// A process that may make no long file (RLIMIT_FSIZE). Every thread feels it, and one that writes too much
/// ends the process (SIGXFSZ): look at results after it. Errors are `std::runtime_error`.

#include <sys/resource.h>

#include <stdexcept>

/// While it exists no file gets longer than `most` bytes.
class short_files {
 public:
  explicit short_files(rlim_t most) {
    if (::getrlimit(RLIMIT_FSIZE, &before_) != 0) throw std::runtime_error("no limit of files");
    const rlimit low{most, before_.rlim_max};
    if (::setrlimit(RLIMIT_FSIZE, &low) != 0) throw std::runtime_error("no other limit of files");
  }
  ~short_files() { static_cast<void>(::setrlimit(RLIMIT_FSIZE, &before_)); }
  short_files(const short_files&) = delete;
  short_files& operator=(const short_files&) = delete;

 private:
  rlimit before_{};
};
