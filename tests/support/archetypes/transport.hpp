#pragma once
/// \file transport.hpp
/// Archetype of the concept `transport`: it registers memory and reaches no peer.
///
/// Every promise of concepts/transport.hpp holds, most of them because no endpoint can be made: `connect`
/// refuses every peer, so no read is ever posted. The transport is neither copyable nor movable; its parts
/// are movable only.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

class transport_archetype {
 public:
  using concept_tag = transport_tag;
  static constexpr std::string_view name = "archetype";
  static constexpr transport_capabilities capabilities{};
  struct options {};

  /// Its bytes count as registered while it lives. The count is shared, so that a region that outlives the
  /// transport by mistake does no harm.
  class memory_region {
   public:
    memory_region(memory_region&& other) noexcept
        : range_{std::exchange(other.range_, {})}, key_{other.key_}, total_{std::move(other.total_)} {}
    memory_region& operator=(memory_region&& other) noexcept {
      std::swap(range_, other.range_);
      std::swap(key_, other.key_);
      std::swap(total_, other.total_);
      return *this;
    }
    ~memory_region() {
      if (total_) *total_ -= range_.bytes;
    }
    memory_range range() const noexcept { return range_; }

   private:
    friend class transport_archetype;
    memory_region(memory_range range, std::uint64_t key, std::shared_ptr<std::uint64_t> total)
        : range_{range}, key_{key}, total_{std::move(total)} {
      *total_ += range_.bytes;
    }
    memory_range range_{};
    std::uint64_t key_ = 0;
    std::shared_ptr<std::uint64_t> total_;
  };

  class endpoint {
   public:
    endpoint(endpoint&&) noexcept = default;
    endpoint& operator=(endpoint&&) noexcept = default;
    incarnation peer() const noexcept { return {}; }
    bool usable() const noexcept { return false; }

   private:
    endpoint() = default;  // not called: no peer can be reached
  };

  class queue {
   public:
    queue(queue&&) noexcept = default;
    queue& operator=(queue&&) noexcept = default;
    post_result post_read(endpoint&, const memory_region&, std::uint64_t, const remote_slice&,
                          request_id) noexcept {
      return post_result::queue_full;
    }
    std::size_t poll(std::span<completion>) noexcept { return 0; }
    void wait(duration timeout) noexcept {
      std::unique_lock lock{state_->mutex};
      state_->changed.wait_for(lock, timeout, [this] { return state_->woken; });
      state_->woken = false;
    }
    void wake() noexcept {
      const std::lock_guard lock{state_->mutex};
      state_->woken = true;
      state_->changed.notify_all();
    }
    std::size_t outstanding() const noexcept { return 0; }

   private:
    friend class transport_archetype;
    struct shared {
      std::mutex mutex;
      std::condition_variable changed;
      bool woken = false;
    };
    queue() = default;
    std::unique_ptr<shared> state_ = std::make_unique<shared>();
  };

  transport_archetype(options, incarnation self) : self_{self} {}
  transport_archetype(const transport_archetype&) = delete;
  transport_archetype& operator=(const transport_archetype&) = delete;

  transport_address address() const { return {"archetype://" + to_hex(self_)}; }

  std::vector<memory_region> register_memory(std::span<const memory_range> ranges, region_access) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].bytes == 0)
        throw error{errc::invalid_argument, "range " + std::to_string(i) + " has no bytes to register"};
    }
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (const memory_range& range : ranges) regions.push_back({range, ++last_key_, registered_});
    return regions;
  }
  std::uint64_t registered_bytes() const noexcept { return *registered_; }
  remote_region describe(const memory_region& region) const {
    remote_region described{0, region.range_.bytes, {}};
    std::memcpy(described.key.bytes.data(), &region.key_, sizeof region.key_);
    described.key.used_bytes = sizeof region.key_;
    return described;
  }
  void revoke(memory_region& region) noexcept { region.key_ = ++last_key_; }
  void cut_off(incarnation) noexcept {}

  queue make_queue(std::size_t depth) {
    if (depth == 0) throw error{errc::invalid_argument, "a queue needs room for one read at least"};
    return queue{};
  }
  endpoint connect(queue&, const transport_address& address, incarnation, duration) {
    throw error{errc::transport_failed, "the archetype reaches nobody, not even " + address.text};
  }

 private:
  incarnation self_;
  std::uint64_t last_key_ = 0;
  std::shared_ptr<std::uint64_t> registered_ = std::make_shared<std::uint64_t>(0);
};
static_assert(transport<transport_archetype>);

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
