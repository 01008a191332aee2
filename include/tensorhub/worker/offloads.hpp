#pragma once
/// \file offloads.hpp
/// Retained versions that this worker's process keeps in host memory, for as long as the server asks for it.
///
/// When the last reliable holder of a retained version wants to let go, the server orders a temporary replica
/// (service/catalog/retention.hpp). Each is a worker of its own, with memory of its own: it copies the
/// version from the process's own tensors, if these hold it, or else reads it like any other reader; it
/// serves it, and leaves when it is told to, or when the process does.
///
///     order --> memory, join, copy or update(exactly v) --> serves --> drop or leave --> spare memory
///                        | cannot: the server is told, and asks somebody else
///
/// The memory is bounded (`worker_options::offload_limit_bytes`), also by what is available on the machine
/// and in the control groups of the process (detail/available_memory.hpp): what does not fit is refused.
/// Touching new memory for the first time takes longer than the copy, so memory that is not needed any more
/// is kept for the next order for `spare_time`.
///
/// Thread safety: all members may be called from any thread. `take` returns at once, the work is done by a
/// thread per version; `close` returns when those threads have ended.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/types/tensor.hpp"
#include "tensorhub/worker/data_plane.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class worker;
struct worker_state;
class update_handle;

class offloads {
 public:
  /// Tells the server that a version cannot be taken.
  using refusal = std::function<void(version_number, messages::status)>;

  static constexpr std::chrono::seconds spare_time{60};

  /// `owner`, `options` and `policies` are those of the worker whose process this is.
  TENSORHUB_DECL offloads(worker_state& owner, worker_options options, worker_policies policies,
                          refusal refuse);
  TENSORHUB_DECL ~offloads();
  offloads(const offloads&) = delete;
  offloads& operator=(const offloads&) = delete;

  /// Brings `version` into host memory and shows it as a part of `replica`. A repeated order changes nothing.
  TENSORHUB_DECL void take(version_number version, std::string replica, std::span<const tensor_spec> tensors);

  /// All of them begin to leave, as `leave` says.
  TENSORHUB_DECL void begin_leave(std::chrono::steady_clock::time_point until);
  /// All of them leave, each when its version is safe elsewhere, or at `until`. What still reads then ends
  /// soon after.
  TENSORHUB_DECL void leave(std::chrono::steady_clock::time_point until);

  /// No order is taken any more, no thread runs any more.
  TENSORHUB_DECL void close();

  /// Memory in which versions are kept now.
  [[nodiscard]] TENSORHUB_DECL std::uint64_t bytes() const;

 private:
  struct kept {
    version_number version{};
    enum class phase : std::uint8_t {
      keeping,   ///< the version arrives or is served; `memory` is the thread's
      offering,  ///< the version is gone; `memory` may be taken by another
      done       ///< the thread does nothing any more
    };
    phase at = phase::keeping;
    bool over = false;                              ///< it is told to end
    std::chrono::steady_clock::time_point until{};  ///< when it must have ended
    std::unique_ptr<owned_tensors> memory{};
    std::uint64_t promised = 0;  ///< bytes of it that are not made yet
    std::mutex holder_mutex{};   ///< before the holder's own; never taken with `mutex_`
    worker* holder = nullptr;    ///< the thread's, while it has one
    std::jthread thread;

    TENSORHUB_DECL void set_holder(worker* now);
    /// Ends what the holder waits for.
    TENSORHUB_DECL void hasten();
  };

  TENSORHUB_DECL void run(kept& self, const std::string& replica, const std::vector<tensor_spec>& tensors);
  TENSORHUB_DECL void keep(kept& self, const std::string& replica, const std::vector<tensor_spec>& tensors);
  /// For a while after the version is gone: lets another have the memory.
  TENSORHUB_DECL void offer_memory(kept& self);
  /// Ends early, with `disconnected`, if the version is to go before the server has answered.
  TENSORHUB_DECL void join(const kept& self, worker& holder);
  /// False: the process's own tensors do not hold the version, or not for long enough.
  [[nodiscard]] TENSORHUB_DECL bool copy_from_owner(const kept& self, worker& holder);
  /// As long as something new arrives within each `drain_timeout`: a shard may have any size.
  TENSORHUB_DECL void receive(kept& self, worker& holder);
  [[nodiscard]] TENSORHUB_DECL worker_options options_of(const std::string& replica) const;
  /// The version is not needed any more.
  TENSORHUB_DECL void end(kept& self);
  /// Until the version is to go; throws `unavailable` when the server has given the holder up.
  /// `calls_beside`: other shards may have to read the version, which is a call of all shards; its end, and
  /// when that comes, change nothing for this one.
  TENSORHUB_DECL void serve(kept& self, worker& holder, const std::string& replica, bool calls_beside);
  /// Makes that call, again after a failure. True: it has succeeded.
  [[nodiscard]] TENSORHUB_DECL static bool call_beside(const kept& self, worker& holder,
                                                       std::optional<update_handle>& call);
  [[nodiscard]] TENSORHUB_DECL bool is_over(const kept& self) const;
  [[nodiscard]] TENSORHUB_DECL std::chrono::milliseconds time_left(const kept& self) const;
  /// Throws `limit_exceeded` if there is no room for so many bytes, which are new memory if it has none.
  TENSORHUB_DECL void reserve(kept& self, std::uint64_t needed);
  /// Pre-condition: mutex_ is held.
  [[nodiscard]] TENSORHUB_DECL bool keeps_nothing() const;
  /// Joins the threads that are done. Pre-condition: mutex_ is held.
  TENSORHUB_DECL void forget_done();
  /// Pre-condition: mutex_ is held. Null: there is none.
  [[nodiscard]] TENSORHUB_DECL std::unique_ptr<owned_tensors> take_spare();

  worker_state* owner_;
  worker_options options_;
  worker_policies policies_;
  refusal refuse_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t bytes_ = 0;
  bool closed_ = false;
  std::list<std::unique_ptr<kept>> kept_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/worker/impl/offloads.ipp"
#endif
