#pragma once
/// \file peer_read.hpp
/// Hides the reads that a source makes on behalf of a peer from the thread sanitizer.
///
/// A source's thread reads the weights for its readers, as a network device would, until their leases are
/// released; the trainer writes after the server has reported the release. Messages between processes
/// establish that order. The sanitizer cannot see such messages, so it would report every update. (Bytes that
/// change nevertheless are found by the reader's check of the control block and by the digests.)

#if defined(__SANITIZE_THREAD__)
#define TENSORHUB_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TENSORHUB_THREAD_SANITIZER 1
#endif
#endif

#ifdef TENSORHUB_THREAD_SANITIZER
// Functions of the sanitizer itself; <sanitizer/tsan_interface.h> does not declare them.
extern "C" void AnnotateIgnoreReadsBegin(const char* file, int line);
extern "C" void AnnotateIgnoreReadsEnd(const char* file, int line);
#endif

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// While it lives, reads of this thread count as reads of a peer. Does nothing without the thread sanitizer.
class peer_read {
 public:
#ifdef TENSORHUB_THREAD_SANITIZER
  peer_read() noexcept {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  }
  ~peer_read() {
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  peer_read() noexcept {}
  ~peer_read() {}
#endif
  peer_read(const peer_read&) = delete;
  peer_read& operator=(const peer_read&) = delete;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
