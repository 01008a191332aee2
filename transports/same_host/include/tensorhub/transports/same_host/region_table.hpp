#pragma once
/// \file region_table.hpp
/// The registered regions of one transport object, their keys and grants, and the files behind them.
///
/// Thread safety: all members may be called from any thread.

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::transports::same_host_detail {

/// A file that readers are given: open for reading only, so that no reader writes into it by mistake.
struct shared_file {
  std::uint64_t number = 0;  ///< unique within the transport object
  detail::unique_fd descriptor{};
  dev_t device = 0;
  ino_t inode = 0;
};

/// What a reader that has the key is told.
struct region_facts {
  memory_range range{};
  grant given{};
  std::shared_ptr<const shared_file> file{};  ///< null: no file, or it is not to be used
};

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
    const std::lock_guard lock{mutex_};
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

  /// Promise 5: nobody's read of it ends well from here on.
  void erase(std::uint64_t region) noexcept {
    const std::lock_guard lock{mutex_};
    const auto found = entries_.find(region);
    if (found == entries_.end()) return;
    if (found->second.access != region_access::local_write)
      grants_->give_back(found->second.facts.given.slot);
    bytes_.fetch_sub(found->second.facts.range.bytes, std::memory_order_relaxed);
    entries_.erase(found);
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

  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct region_entry {
    region_facts facts{};
    region_access access = region_access::both;
    bool is_closed = false;
    std::uint64_t secret[2] = {0, 0};
  };

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
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace tensorhub::transports::same_host_detail
