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
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/unique_fd.hpp"
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
[[nodiscard]] bool needs_device(const memory_range& range) noexcept;

class region_table {
 public:
  region_table(grant_page& grants, bool offer_files) : grants_{&grants}, offer_files_{offer_files} {}

  /// Number of the new region. Throws `system_failed` or `limit_exceeded`.
  [[nodiscard]] std::uint64_t insert(const memory_range& range, region_access access);

  /// Promise 5: nobody's read of it ends well from here on. A piece that is being staged is waited for: the
  /// memory may be given back to the device afterwards.
  void erase(std::uint64_t region) noexcept;

  /// The region gets a new secret and a new grant. Without randomness it cannot be read by anybody any more.
  void renew(std::uint64_t region) noexcept;

  [[nodiscard]] region_key key_of(std::uint64_t region) const;

  /// What the owner of this key may know, or nothing.
  [[nodiscard]] std::optional<region_facts> find(const region_key& key) const noexcept;

  /// As `find`, for device memory; and it is not deregistered until `give_back`. May throw bad_alloc.
  [[nodiscard]] std::optional<region_facts> lend(const region_key& key);
  void give_back(std::uint64_t region) noexcept;

  /// The facts of a region of this process's own.
  [[nodiscard]] std::optional<region_facts> facts_of(std::uint64_t region) const;

  /// The devices of all regions, each once.
  [[nodiscard]] std::vector<device_access*> devices() const;

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
  [[nodiscard]] static std::optional<device_export> export_of(const memory_range& range, region_facts& facts);

  /// The same number for all regions of an allocation, while any of them is registered.
  [[nodiscard]] std::shared_ptr<const shared_export> allocation_of(device_export words);

  static void fill_secret(std::uint64_t (&secret)[2]);

  /// The file behind the range, opened once for all of its regions; null if it cannot serve (a device, a file
  /// that is shorter than the range, one that cannot be opened again): then the memory is read as any other.
  [[nodiscard]] std::shared_ptr<const shared_file> file_of(const memory_range& range);

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

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/region_table.ipp"
#endif
