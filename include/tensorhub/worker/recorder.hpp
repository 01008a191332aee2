#pragma once
/// \file recorder.hpp
/// Counts what a worker does (worker/statistics.hpp says what is counted).
///
/// Thread safety: every member may be called from any thread; what it does during a transfer is an atomic
/// addition.

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/recorders.hpp"
#include "tensorhub/transfer/pull_report.hpp"
#include "tensorhub/transfer/registration.hpp"
#include "tensorhub/worker/statistics.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Counts; `values` is a copy of what was counted.
class worker_recorder {
 public:
  /// Runs a call of the worker and counts how it ended.
  template <typename Call>
  publish_report publish(Call&& call) {
    const publish_report done = failures_counted(publishes_, std::forward<Call>(call));
    publishes_.add(errc::ok);
    publish_.add_seconds(done.seconds);
    digest_.add_seconds(done.digest_seconds);
    return done;
  }
  template <typename Call>
  unpublish_report unpublish(Call&& call) {
    const unpublish_report done = failures_counted(unpublishes_, std::forward<Call>(call));
    unpublishes_.add(errc::ok);
    unpublish_.add_seconds(done.seconds);
    drains_forced_.add(done.forced ? 1 : 0);
    readers_moved_.add(done.moved);
    readers_cut_off_.add(done.cut_off);
    return done;
  }
  void unpublish_refused(errc reason) noexcept { unpublishes_.add(reason); }
  template <typename Call>
  update_report update(Call&& call) {
    update_report done = failures_counted(updates_, std::forward<Call>(call));
    update_.add_seconds(done.seconds);
    if (done.kept) {
      updates_kept_.add();
    } else {
      updates_.add(errc::ok);
      wait_.add_seconds(done.wait_seconds);
      pull_.add_seconds(done.pull_seconds);
    }
    return done;
  }

  void source_failed(errc reason) noexcept { sources_failed_.add(reason); }
  void stalled() noexcept { stalls_.add(); }
  void digested(std::uint64_t chunks) noexcept { digested_chunks_ = chunks; }
  /// A transfer has ended, well or not.
  TENSORHUB_DECL void transferred(const pull_progress& transfer);
  TENSORHUB_DECL void received(std::string path, bool crossing, std::uint64_t bytes);

  [[nodiscard]] TENSORHUB_DECL worker_statistics values(const worker_options& whose,
                                                        const registration_cost& registration) const;

 private:
  template <typename Call>
  static auto failures_counted(detail::outcomes& ended, Call&& call) {
    try {
      return std::forward<Call>(call)();
    } catch (const error& e) {
      ended.add(e.code());
      throw;
    } catch (...) {
      ended.add(errc::system_failed);
      throw;
    }
  }

  detail::outcomes publishes_, unpublishes_, updates_, sources_failed_;  ///< updates_: without updates_kept_
  detail::counter updates_kept_, drains_forced_, readers_moved_, readers_cut_off_, stalls_, chunks_,
      unchanged_bytes_;
  detail::seconds_recorder publish_, digest_, unpublish_, update_, wait_, pull_;
  std::atomic<std::uint64_t> digested_chunks_ = 0;
  mutable std::mutex mutex_;
  std::vector<path_bytes> received_;  ///< guarded by mutex_; a handful
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/recorder.ipp"
#endif
