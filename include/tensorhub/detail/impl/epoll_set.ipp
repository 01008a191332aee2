#pragma once
/// \file epoll_set.ipp
/// Definitions of detail/epoll_set.hpp.

#include "tensorhub/detail/epoll_set.hpp"

#include <cerrno>
#include <cstring>

#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

TENSORHUB_DECL epoll_set::epoll_set(std::string_view owner)
    : owner_{owner}, set_{::epoll_create1(EPOLL_CLOEXEC)} {
  if (!set_)
    throw error(errc::system_failed, owner_ + ": no epoll: " + std::strerror(errno) +
                                         ": raise the limit of open files (ulimit -n)");
}

TENSORHUB_DECL void epoll_set::must_add(int descriptor, std::uint64_t number) {
  if (!add(descriptor, EPOLLIN, number))
    throw error(errc::system_failed, owner_ + ": epoll takes no descriptor: " + std::strerror(errno) +
                                         ": raise fs.epoll.max_user_watches, or free memory");
}

TENSORHUB_DECL bool epoll_set::add(int descriptor, std::uint32_t events, std::uint64_t number) noexcept {
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = number;
  return ::epoll_ctl(set_.get(), EPOLL_CTL_ADD, descriptor, &wanted) == 0;
}

TENSORHUB_DECL void epoll_set::change(int descriptor, std::uint32_t events, std::uint64_t number) noexcept {
  epoll_event wanted{};
  wanted.events = events;
  wanted.data.u64 = number;
  static_cast<void>(::epoll_ctl(set_.get(), EPOLL_CTL_MOD, descriptor, &wanted));
}

TENSORHUB_DECL void epoll_set::remove(int descriptor) noexcept {
  static_cast<void>(::epoll_ctl(set_.get(), EPOLL_CTL_DEL, descriptor, nullptr));
}

TENSORHUB_DECL int epoll_set::wait(std::span<epoll_event> events,
                                   std::chrono::milliseconds longest) noexcept {
  return ::epoll_wait(set_.get(), events.data(), static_cast<int>(events.size()),
                      static_cast<int>(longest.count()));
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
