#pragma once
/// \file region_table.ipp
/// Definitions of region_table.hpp.

#include <algorithm>
#include <utility>

#include "tensorhub/detail/random_id.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/same_host/region_table.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail {

TENSORHUB_DECL bool needs_device(const memory_range& range) noexcept {
  // Managed memory moves between host and device by page faults, which calls of other processes do not
  // trigger.
  return !range.host_accessible() || (range.kind == memory_kind::cuda_managed && range.device != nullptr);
}

TENSORHUB_DECL std::uint64_t region_table::insert(const memory_range& range, region_access access) {
  region_entry entry;
  entry.access = access;
  entry.facts.range = range;
  detail::fill_random(entry.secret);
  const bool readable = access != region_access::local_write;
  std::optional<device_export> exported;
  if (readable && needs_device(range)) exported = export_of(range, entry.facts);
  const std::lock_guard lock{mutex_};
  if (exported) {
    entry.facts.allocation = allocation_of(*exported);
    entry.facts.allocation_offset = exported->offset;
  }
  if (readable && !needs_device(range)) offer_host_memory(entry.facts);
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

TENSORHUB_DECL void region_table::erase(std::uint64_t region) noexcept {
  std::unique_lock lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end()) return;
  if (found->second.access != region_access::local_write) grants_->give_back(found->second.facts.given.slot);
  bytes_.fetch_sub(found->second.facts.range.bytes, std::memory_order_relaxed);
  entries_.erase(found);
  wait_for_loans(lock, region);
}

TENSORHUB_DECL void region_table::wait_for_loans(std::unique_lock<std::mutex>& lock,
                                                 std::uint64_t region) noexcept {
  quiet_.wait_for(lock, longest_loan_, [&] { return !detail::contains(lent_, region); });
}

TENSORHUB_DECL void region_table::renew(std::uint64_t region) noexcept {
  std::unique_lock lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end() || found->second.access == region_access::local_write) return;
  region_entry& entry = found->second;
  entry.facts.given = grants_->renew(entry.facts.given.slot);
  try {
    detail::fill_random(entry.secret);
  } catch (const error&) {
    entry.is_closed = true;
  }
  wait_for_loans(lock, region);
}

TENSORHUB_DECL region_key region_table::key_of(std::uint64_t region) const {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(region);
  if (found == entries_.end())
    throw error(errc::invalid_argument, "same_host: this region is not registered");
  return {region, {found->second.secret[0], found->second.secret[1]}};
}

TENSORHUB_DECL auto region_table::entry_of(const region_key& key) const noexcept -> const region_entry* {
  const auto found = entries_.find(key.region);
  if (found == entries_.end()) return nullptr;
  const region_entry& entry = found->second;
  const std::uint64_t difference = (entry.secret[0] ^ key.secret[0]) | (entry.secret[1] ^ key.secret[1]);
  if (difference != 0 || entry.is_closed || entry.access == region_access::local_write) return nullptr;
  return &entry;
}

TENSORHUB_DECL std::optional<region_facts> region_table::find(const region_key& key) const noexcept {
  const std::lock_guard lock{mutex_};
  const region_entry* const entry = entry_of(key);
  return entry == nullptr ? std::nullopt : std::optional{entry->facts};
}

TENSORHUB_DECL std::optional<region_facts> region_table::lend(const region_key& key) {
  const std::lock_guard lock{mutex_};
  const region_entry* const entry = entry_of(key);
  if (entry == nullptr || (entry->facts.memory == region_memory::host && lets_attach_)) return std::nullopt;
  lent_.push_back(key.region);
  return entry->facts;
}

TENSORHUB_DECL void region_table::give_back(std::uint64_t region) noexcept {
  {
    const std::lock_guard lock{mutex_};
    if (const auto at = detail::find(lent_, region); at != lent_.end()) lent_.erase(at);
  }
  quiet_.notify_all();
}

TENSORHUB_DECL std::optional<region_facts> region_table::facts_of(std::uint64_t region) const {
  const std::lock_guard lock{mutex_};
  const auto found = entries_.find(region);
  return found == entries_.end() ? std::nullopt : std::optional{found->second.facts};
}

TENSORHUB_DECL std::vector<device_access*> region_table::devices() const {
  std::vector<device_access*> out;
  const std::lock_guard lock{mutex_};
  for (const auto& [region, entry] : entries_) {
    device_access* const device = entry.facts.range.device;
    if (device != nullptr && !detail::contains(out, device)) out.push_back(device);
  }
  return out;
}

TENSORHUB_DECL void region_table::offer_host_memory(region_facts& facts) {
  if (offers_files_ && facts.range.backing_fd >= 0) facts.file = file_of(facts.range);
  if (facts.file || lets_attach_) return;
  facts.why = std::make_shared<const std::string>("its process lets nobody attach (its option attach)");
}

TENSORHUB_DECL std::optional<device_export> region_table::export_of(const memory_range& range,
                                                                    region_facts& facts) const {
  std::optional<device_export> exported;
  std::string why;
  if (!exports_devices_)
    why = "its process exports nothing (its option device)";
  else if (range.kind == memory_kind::cuda_managed)
    why = "managed memory cannot be mapped by other processes";
  else
    exported = range.device->export_memory(range, why);
  if (exported && (exported->offset > exported->allocation_bytes ||
                   range.bytes > exported->allocation_bytes - exported->offset)) {
    why = "the device exports less than the region";
    exported.reset();
  }
  facts.memory = exported ? region_memory::mappable_device : region_memory::staged;
  if (!exported)
    facts.why = std::make_shared<const std::string>(why.empty() ? "the device gives no reason" : why);
  return exported;
}

TENSORHUB_DECL std::shared_ptr<const shared_export> region_table::allocation_of(device_export words) {
  words.offset = 0;
  std::erase_if(allocations_, [](const auto& each) { return each.expired(); });
  for (const auto& each : allocations_) {
    auto known = each.lock();
    if (known && known->words == words) return known;
  }
  auto fresh = std::make_shared<shared_export>(shared_export{++last_export_, words});
  allocations_.push_back(fresh);
  return fresh;
}

TENSORHUB_DECL std::shared_ptr<const shared_file> region_table::file_of(const memory_range& range) {
  struct stat facts {};
  if (::fstat(range.backing_fd, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size < 0) return {};
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (range.backing_offset > size || range.bytes > size - range.backing_offset) return {};
  if (!lets_attach_ && range.bytes < size) return {};
  std::erase_if(files_, [](const auto& each) { return each.expired(); });
  for (const auto& each : files_) {
    auto file = each.lock();
    if (file && file->facts.st_dev == facts.st_dev && file->facts.st_ino == facts.st_ino) return file;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(range.backing_fd);
  detail::unique_socket own{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  // A descriptor that is open for writing is never given away.
  if (!own && (::fcntl(range.backing_fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
    own = detail::unique_socket{::fcntl(range.backing_fd, F_DUPFD_CLOEXEC, 0)};
  if (!own) return {};
  const bool is_sealed = is_sealed_against_shrinking(own.get());
  auto file = std::make_shared<shared_file>(shared_file{++last_file_, std::move(own), facts, is_sealed});
  files_.push_back(file);
  return file;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::same_host_detail
