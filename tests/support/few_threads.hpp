#pragma once
/// \file few_threads.hpp
/// A process that can start only some more threads: `threads_left`, of which each thread that is started
/// takes one, which it gives back when it ends. It replaces pthread_create, so one file of a binary includes
/// it. The sanitizers replace pthread_create themselves: there TENSORHUB_THREADS_CAN_FAIL is 0, and there is
/// nothing else in here.

#include "support/sanitizers.hpp"
#define TENSORHUB_THREADS_CAN_FAIL !(TENSORHUB_UNDER_ADDRESS_SANITIZER || TENSORHUB_UNDER_THREAD_SANITIZER)

#if TENSORHUB_THREADS_CAN_FAIL

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

static std::atomic<int> threads_left = -1;  ///< -1: as many as the system gives

struct counted_thread {
  void* (*run)(void*);
  void* what;
};

extern "C" inline void* run_counted_thread(void* given) {
  const counted_thread it = *static_cast<counted_thread*>(given);
  delete static_cast<counted_thread*>(given);
  void* const result = it.run(it.what);
  if (threads_left >= 0) ++threads_left;
  return result;
}

extern "C" int pthread_create(pthread_t* made, const pthread_attr_t* how, void* (*run)(void*),
                              void* what) noexcept {
  using creation = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<creation>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left < 0) return real(made, how, run, what);
  if (threads_left == 0) return EAGAIN;
  auto* const counted = new counted_thread{run, what};
  --threads_left;
  const int failed = real(made, how, &run_counted_thread, counted);
  if (failed != 0) delete counted;
  return failed;
}

#endif
