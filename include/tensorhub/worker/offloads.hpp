#pragma once
/// \file offloads.hpp
/// Retained versions that this worker's process keeps in host memory, for as long as the server asks for it.
///
/// When the last reliable holder of a retained version wants to let go, the server orders a temporary replica
/// (service/catalog/retention.hpp). Each is a worker of its own, with memory of its own: it reads the version
/// like any other reader, serves it, and leaves when it is told to, or when the process does.
///
///     order --> memory, join, update(exactly v) --> serves --> drop or leave --> memory given back
///                        | cannot: the server is told, and asks somebody else
///
/// The memory is bounded (`worker_options::offload_limit_bytes`): what does not fit is refused.
///
/// Where the worker listens on a fixed port, temporary replicas listen on any free one: how many there will
/// be is not known before. (For a process behind a firewall that lets fixed ports through only:
/// `offload_limit_bytes` zero, then it takes none.)
///
/// Thread safety: all members may be called from any thread. `take` returns at once, the work is done by a
/// thread per version; `leave` and `close` return when those threads have ended.

#include <algorithm>
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
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/options.hpp"
#include "tensorhub/service/messages.hpp"
#include "tensorhub/transfer/tensor_memory.hpp"
#include "tensorhub/types/listen_port.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <typename Worker>
class offloads {
 public:
  using transport_options = typename Worker::transport_options;
  /// Tells the server that a version cannot be taken.
  using refusal = std::function<void(version_number, messages::status)>;

  /// `options` and `through` are those of the worker whose process this is.
  offloads(worker_options options, transport_options through, refusal refuse)
      : options_{std::move(options)}, through_{std::move(through)}, refuse_{std::move(refuse)} {}
  ~offloads() { close(); }
  offloads(const offloads&) = delete;
  offloads& operator=(const offloads&) = delete;

  /// Brings `version` into host memory and shows it as a part of `replica`. A repeated order changes nothing.
  void take(version_number version, std::string replica, std::span<const tensor_spec> tensors) {
    const std::lock_guard lock{mutex_};
    forget_ended();
    if (closed_) return;
    if (std::ranges::any_of(kept_, [&](const auto& each) { return each->version == version; })) return;
    kept_.push_back(std::make_unique<kept>());
    kept& added = *kept_.back();
    added.version = version;
    added.thread = std::jthread{
        [this, &added, replica = std::move(replica), tensors = std::vector(tensors.begin(), tensors.end())] {
          run(added, replica, tensors);
        }};
  }

  /// All of them leave, each after its version is safe elsewhere or `grace` is over.
  void leave(std::chrono::milliseconds grace) {
    std::list<std::unique_ptr<kept>> ending;
    {
      const std::lock_guard lock{mutex_};
      ending.swap(kept_);
      for (const auto& each : ending) {
        each->grace = grace;
        each->over = true;
      }
      changed_.notify_all();
    }  // their threads are joined here, without the lock
  }

  /// No order is taken any more, no thread runs any more.
  void close() {
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
    }
    leave(std::chrono::milliseconds{0});
  }

  /// Memory that is used now.
  [[nodiscard]] std::uint64_t bytes() const {
    const std::lock_guard lock{mutex_};
    return bytes_;
  }

 private:
  struct kept {
    version_number version{};
    bool over = false;   ///< is to end
    bool ended = false;  ///< the thread does nothing any more
    std::chrono::milliseconds grace{};
    std::jthread thread;
  };

  void run(kept& self, const std::string& replica, const std::vector<tensor_spec>& tensors) {
    std::uint64_t needed = 0;
    for (const tensor_spec& each : tensors) needed += each.bytes().value_or(0);
    const bool fits = reserve(needed);
    try {
      if (!fits) {
        refuse_(self.version,
                {errc::limit_exceeded,
                 "its " + std::to_string(needed) + " bytes are beyond offload_limit_bytes of the process"});
      } else {
        keep(self, replica, tensors);
      }
    } catch (const error& e) {
      refuse_(self.version, {e.code(), e.sentence()});
    } catch (const std::exception& e) {
      refuse_(self.version, {errc::system_failed, e.what()});
    }
    const std::lock_guard lock{mutex_};
    if (fits) bytes_ -= needed;
    self.ended = true;
  }

  void keep(kept& self, const std::string& replica, const std::vector<tensor_spec>& tensors) {
    const tensor_memory<typename Worker::offload_space> memory{tensors};
    worker_options options = options_;
    options.replica = replica;
    options.temporary = true;
    options.trace = {};
    options.dropped = [this, &self] {
      const std::lock_guard lock{mutex_};
      self.over = true;
      self.grace = options_.drain_timeout;
      changed_.notify_all();
    };
    Worker holder{options, on_any_port(through_)};
    for (std::size_t i = 0; i < tensors.size(); ++i)
      holder.add(tensors[i].name, memory.data(i), tensors[i].shape, tensors[i].type);
    auto reading = holder.update_async(exactly(self.version), options_.drain_timeout);
    std::unique_lock lock{mutex_};
    while (!self.over && !reading.done()) changed_.wait_for(lock, std::chrono::milliseconds{10});
    lock.unlock();  // the holder's own lock comes before this one (`dropped`)
    if (!reading.done()) reading.cancel();
    static_cast<void>(reading.wait(options_.drain_timeout));
    // A holder that was declared dead serves nobody: its memory is given back, and the server may order
    // again.
    while (holder.held_version() == self.version) {
      lock.lock();
      changed_.wait_for(lock, look_interval, [&] { return self.over; });
      const bool over = self.over;
      const auto grace = self.grace;
      lock.unlock();
      if (over) return holder.leave(grace);
    }
    throw error(errc::unavailable, "the temporary replica '" + replica + "' does not hold version " +
                                       to_string(self.version) + " any more: the server has given it up");
  }

  [[nodiscard]] bool reserve(std::uint64_t needed) {
    const std::lock_guard lock{mutex_};
    if (needed > options_.offload_limit_bytes || bytes_ > options_.offload_limit_bytes - needed) return false;
    bytes_ += needed;
    return true;
  }
  /// Pre-condition: mutex_ is held.
  void forget_ended() {
    std::erase_if(kept_, [](const auto& each) { return each->ended; });
  }

  static constexpr std::chrono::milliseconds look_interval{200};

  worker_options options_;
  transport_options through_;
  refusal refuse_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t bytes_ = 0;
  bool closed_ = false;
  std::list<std::unique_ptr<kept>> kept_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE
