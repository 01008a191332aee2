#pragma once
/// \file region_table.hpp
/// The registered regions of one transport object, their keys and grants, and the files behind them.
///
/// Thread safety: all members may be called from any thread.

#include <fcntl.h>
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
#include "tensorhub/detail/unique_socket.hpp"
#include "tensorhub/transports/same_host/grants.hpp"
#include "tensorhub/transports/same_host/options.hpp"
#include "tensorhub/transports/same_host/protocol.hpp"
#include "tensorhub/types/device_access.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

/// How long a device may take for one staged piece. One that takes longer is considered dead.
struct stage_limits {
  duration copy = std::chrono::seconds{20};    ///< longer than any copy of one piece takes
  duration lane_end = device_lane::patience;   ///< for a lane that has not copied it
  duration margin = std::chrono::seconds{10};  ///< for threads that are late

  /// After it the memory is its owner's again, whatever the device does.
  [[nodiscard]] constexpr duration whole() const noexcept { return copy + lane_end + margin; }
};

/// A file for readers: open for reading only.
struct shared_file {
  std::uint64_t number = 0;            ///< unique within the transport object
  detail::unique_socket descriptor{};  ///< a forked child with a copy would keep the file's pages
  struct stat facts {};
  bool is_sealed = false;  ///< memory of tensorhub::host_memory: there are tensors in it, and nothing else

  /// True if the descriptor shows the user nothing that the file's mode hides from that user.
  [[nodiscard]] bool may_go_to(uid_t user) const noexcept {
    if (is_sealed || user == ::geteuid()) return true;
    return (facts.st_mode & (user == facts.st_uid ? S_IRUSR : S_IROTH)) != 0;
  }
};

/// An allocation of device memory that readers can map.
struct shared_export {
  std::uint64_t number = 0;  ///< unique within the transport object
  device_export words{};     ///< except its offset
};

/// The facts that a reader with the key receives.
struct region_facts {
  memory_range range{};
  grant given{};
  std::shared_ptr<const shared_file> file{};  ///< null: no file, or files are not offered
  region_memory memory = region_memory::host;
  std::shared_ptr<const shared_export> allocation{};  ///< of a mappable region
  std::uint64_t allocation_offset = 0;                ///< of the region in it
  std::shared_ptr<const std::string> why{};           ///< why a staged region cannot be reached by readers
};

/// True: the CPU cannot read the memory.
[[nodiscard]] bool needs_device(const memory_range& range) noexcept;

class region_table {
 public:
  region_table(grant_page& grants, const same_host_options& options, stage_limits limits = {})
      : grants_{&grants},
        longest_loan_{limits.whole()},
        offers_files_{options.files != backing_files::ignore},
        lets_attach_{options.attach != memory_attach::never},
        exports_devices_{options.device != device_memory::stage} {}

  /// Returns the number of the new region. Throws `system_failed` or `limit_exceeded`.
  [[nodiscard]] std::uint64_t insert(const memory_range& range, region_access access);

  /// Promise 5: no read of the region succeeds from now on. The function waits for pieces that are being
  /// staged: the memory may be freed afterwards.
  void erase(std::uint64_t region) noexcept;

  /// Gives the region a new secret and a new grant, and waits for pieces that are being staged. If the system
  /// has no random numbers, no peer can read the region any more.
  void renew(std::uint64_t region) noexcept;

  [[nodiscard]] region_key key_of(std::uint64_t region) const;

  /// The facts for the owner of this key; empty if the key is not valid.
  [[nodiscard]] std::optional<region_facts> find(const region_key& key) const noexcept;

  /// As `find`, for memory that may be staged; the region is neither deregistered nor revoked until
  /// `give_back`. May throw bad_alloc.
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

  /// Precondition of these three: the mutex is held.
  [[nodiscard]] const region_entry* entry_of(const region_key& key) const noexcept;
  void wait_for_loans(std::unique_lock<std::mutex>& lock, std::uint64_t region) noexcept;
  /// Notes in `facts` how readers reach a region of host memory.
  void offer_host_memory(region_facts& facts);

  /// Asks the device for an export, and notes the result in `facts`.
  [[nodiscard]] std::optional<device_export> export_of(const memory_range& range, region_facts& facts) const;

  /// The export of an allocation, with the same number for all its regions while any of them is registered.
  [[nodiscard]] std::shared_ptr<const shared_export> allocation_of(device_export words);

  /// The file behind the range, opened once for all of its regions; null if it cannot serve (a device, a file
  /// that is shorter than the range, one that holds more where nobody may attach, one that cannot be opened
  /// again): then the memory is read like memory without a file.
  [[nodiscard]] std::shared_ptr<const shared_file> file_of(const memory_range& range);

  grant_page* grants_;
  duration longest_loan_;
  bool offers_files_;
  bool lets_attach_;
  bool exports_devices_;
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, region_entry> entries_;
  std::vector<std::weak_ptr<const shared_file>> files_;
  std::uint64_t last_region_ = 0;
  std::uint64_t last_file_ = 0;
  std::vector<std::weak_ptr<const shared_export>> allocations_;
  std::uint64_t last_export_ = 0;
  std::vector<std::uint64_t> lent_;  ///< one entry for each piece that is being staged
  std::condition_variable quiet_;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/same_host/impl/region_table.ipp"
#endif
