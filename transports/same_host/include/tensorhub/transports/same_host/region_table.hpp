#pragma once
/// \file region_table.hpp
/// The registered regions of one transport object, their keys and grants, and the files behind them.
///
/// Thread safety: all members may be called from any thread.

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// A file that readers are given: open for reading only, so that no reader writes into it by mistake.
struct shared_file {
  std::uint64_t number = 0;  ///< unique within the transport object
  detail::unique_fd descriptor{};
  dev_t device = 0;
  ino_t inode = 0;
};

/// An allocation of device memory that readers can map.
struct shared_export {
  std::uint64_t number = 0;  ///< unique within the transport object
  device_export words{};     ///< but for its offset
};

/// What a reader that has the key is told.
struct region_facts {
  memory_range range{};
  grant given{};
  std::shared_ptr<const shared_file> file{};  ///< null: no file, or it is not to be used
  region_memory memory = region_memory::host;
  std::shared_ptr<const shared_export> allocation{};  ///< of a mappable region
  std::uint64_t allocation_offset = 0;                ///< of the region in it
  std::shared_ptr<const std::string> why{};           ///< a staged region cannot be mapped
};

/// Memory that the CPU cannot read for a reader.
[[nodiscard]] inline bool needs_device(const memory_range& range) noexcept {
  // Managed memory moves between host and device by page faults, which other processes' calls do not take.
  return !range.host_accessible() || (range.kind == memory_kind::cuda_managed && range.device != nullptr);
}

class region_table {
 public:
  region_table(grant_page& grants, bool offer_files) : grants_{&grants}, offer_files_{offer_files} {}

  /// Number of the new region. Throws `system_failed` or `limit_exceeded`.
  [[nodiscard]] std::uint64_t insert(const memory_range& range, region_access access) {
    region_entry entry;
    entry.access = access;
    entry.facts.range = range;
    fill_secret(entry.secret);
    const bool readable = access != region_access::local_write;
    std::optional<device_export> exported;
    if (readable && needs_device(range)) exported = export_of(range, entry.facts);
    const std::lock_guard lock{mutex_};
    if (exported) {
      entry.facts.allocation = allocation_of(*exported);
      entry.facts.allocation_offset = exported->offset;
    }
    if (readable && offer_files_ && range.backing_fd >= 0) entry.facts.file = file_of(range);
    if (readable) entry.facts.given = grants_->take();
    const std::uint64_t region = ++last_region_;
    try {
      entries_.emplace(region, entry);
    } catch (...) {
      if (readable) grants_->give_back(entry.facts.given.slot);
      throw;
    }
    bytes_.fetch_add(range.bytes, std::memory_order_relaxed);
    return region;
  }

  /// Promise 5: nobody's read of it ends well from here on. A piece that is being staged is waited for: the
  /// memory may be given back to the device afterwards.
  void erase(std::uint64_t region) noexcept {
    std::unique_lock lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end()) return;
    if (found->second.access != region_access::local_write)
      grants_->give_back(found->second.facts.given.slot);
    bytes_.fetch_sub(found->second.facts.range.bytes, std::memory_order_relaxed);
    entries_.erase(found);
    quiet_.wait_for(lock, longest_loan, [&] { return std::ranges::find(lent_, region) == lent_.end(); });
  }

  /// The region gets a new secret and a new grant. Without randomness it cannot be read by anybody any more.
  void renew(std::uint64_t region) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end() || found->second.access == region_access::local_write) return;
    region_entry& entry = found->second;
    entry.facts.given = grants_->renew(entry.facts.given.slot);
    try {
      fill_secret(entry.secret);
    } catch (const error&) {
      entry.is_closed = true;
    }
  }

  [[nodiscard]] region_key key_of(std::uint64_t region) const {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end())
      throw error(errc::invalid_argument, "same_host: this region is not registered");
    return {region, {found->second.secret[0], found->second.secret[1]}};
  }

  /// What the owner of this key may know, or nothing.
  [[nodiscard]] std::optional<region_facts> find(const region_key& key) const noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(key.region);
    if (found == entries_.end()) return std::nullopt;
    const region_entry& entry = found->second;
    const std::uint64_t difference = (entry.secret[0] ^ key.secret[0]) | (entry.secret[1] ^ key.secret[1]);
    if (difference != 0 || entry.is_closed || entry.access == region_access::local_write) return std::nullopt;
    return entry.facts;
  }

  /// As `find`, for device memory; and it is not deregistered until `give_back`. May throw bad_alloc.
  [[nodiscard]] std::optional<region_facts> lend(const region_key& key) {
    auto facts = find(key);
    if (!facts || facts->memory == region_memory::host) return std::nullopt;
    const std::lock_guard lock{mutex_};
    if (!entries_.contains(key.region)) return std::nullopt;
    lent_.push_back(key.region);
    return facts;
  }
  void give_back(std::uint64_t region) noexcept {
    {
      const std::lock_guard lock{mutex_};
      if (const auto at = std::ranges::find(lent_, region); at != lent_.end()) lent_.erase(at);
    }
    quiet_.notify_all();
  }

  /// The facts of a region of this process's own.
  [[nodiscard]] std::optional<region_facts> facts_of(std::uint64_t region) const {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    return found == entries_.end() ? std::nullopt : std::optional{found->second.facts};
  }

  /// The devices of all regions, each once.
  [[nodiscard]] std::vector<device_access*> devices() const {
    std::vector<device_access*> out;
    const std::lock_guard lock{mutex_};
    for (const auto& [region, entry] : entries_) {
      device_access* const device = entry.facts.range.device;
      if (device != nullptr && std::ranges::find(out, device) == out.end()) out.push_back(device);
    }
    return out;
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct region_entry {
    region_facts facts{};
    region_access access = region_access::both;
    bool is_closed = false;
    std::uint64_t secret[2] = {0, 0};
  };

  /// A device's copy of one piece ends sooner, or it never ends.
  static constexpr std::chrono::seconds longest_loan{60};

  /// Asks the device, and notes in `facts` what comes of it.
  [[nodiscard]] static std::optional<device_export> export_of(const memory_range& range,
                                                              region_facts& facts) {
    std::optional<device_export> exported;
    std::string why;
    if (range.kind == memory_kind::cuda_managed)
      why = "managed memory cannot be mapped by other processes";
    else
      exported = range.device->export_memory(range, why);
    if (exported && (exported->offset > exported->allocation_bytes ||
                     range.bytes > exported->allocation_bytes - exported->offset)) {
      why = "the device exports less than the region";
      exported.reset();
    }
    facts.memory = exported ? region_memory::mappable_device : region_memory::staged_device;
    if (!exported)
      facts.why = std::make_shared<const std::string>(why.empty() ? "the device does not say why" : why);
    return exported;
  }

  /// The same number for all regions of an allocation, while any of them is registered.
  [[nodiscard]] std::shared_ptr<const shared_export> allocation_of(device_export words) {
    words.offset = 0;
    std::erase_if(exports_, [](const auto& each) { return each.expired(); });
    for (const auto& each : exports_) {
      auto known = each.lock();
      if (known && known->words == words) return known;
    }
    auto fresh = std::make_shared<shared_export>(shared_export{++last_export_, words});
    exports_.push_back(fresh);
    return fresh;
  }

  static void fill_secret(std::uint64_t (&secret)[2]) {
    for (;;) {
      const auto filled = ::getrandom(secret, sizeof secret, 0);
      if (filled == static_cast<ssize_t>(sizeof secret)) return;
      if (filled < 0 && errno != EINTR)
        throw error(errc::system_failed,
                    std::string{"same_host: no random numbers: "} + std::strerror(errno));
    }
  }

  /// The file behind the range, opened once for all of its regions; null if it cannot serve (a device, a file
  /// that is shorter than the range, one that cannot be opened again): then the memory is read as any other.
  [[nodiscard]] std::shared_ptr<const shared_file> file_of(const memory_range& range) {
    struct stat facts {};
    if (::fstat(range.backing_fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size < 0) return {};
    const auto size = static_cast<std::uint64_t>(facts.st_size);
    if (range.backing_offset > size || range.bytes > size - range.backing_offset) return {};
    std::erase_if(files_, [](const auto& each) { return each.expired(); });
    for (const auto& each : files_) {
      auto file = each.lock();
      if (file && file->device == facts.st_dev && file->inode == facts.st_ino) return file;
    }
    const std::string path = "/proc/self/fd/" + std::to_string(range.backing_fd);
    detail::unique_fd own{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!own) own.reset(::fcntl(range.backing_fd, F_DUPFD_CLOEXEC, 0));
    if (!own) return {};
    auto file =
        std::make_shared<shared_file>(shared_file{++last_file_, std::move(own), facts.st_dev, facts.st_ino});
    files_.push_back(file);
    return file;
  }

  grant_page* grants_;
  bool offer_files_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, region_entry> entries_;
  std::vector<std::weak_ptr<const shared_file>> files_;
  std::uint64_t last_region_ = 0;
  std::uint64_t last_file_ = 0;
  std::vector<std::weak_ptr<const shared_export>> exports_;
  std::uint64_t last_export_ = 0;
  std::vector<std::uint64_t> lent_;  ///< a region for each piece of it that is being staged
  std::condition_variable quiet_;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
