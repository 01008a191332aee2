#pragma once
/// \file memory.hpp
/// The memory that is read and the memory that is read into, and the pattern that `--validate` looks for.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <tensorhub/memory/host.hpp>
#include <tensorhub/types/memory.hpp>
#include <utility>
#include <vector>

namespace transport_bench {

enum class memory_choice : std::uint8_t {
  file,   ///< a memfd (tensorhub::host_memory): transports may map it or send from it
  plain,  ///< anonymous private pages, as malloc gives them
};

/// One region's memory, unmapped at the end.
class buffer {
 public:
  buffer(memory_choice choice, std::uint64_t bytes) {
    if (choice == memory_choice::file) {
      file_.emplace(bytes);
      range_ = file_->range();
      return;
    }
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
      throw std::runtime_error("no memory for a region of " + std::to_string(bytes) + " bytes");
    plain_ = true;
    range_ = {static_cast<std::byte*>(memory), bytes};
  }
  ~buffer() {
    if (plain_) ::munmap(range_.data, range_.bytes);
  }
  buffer(buffer&& other) noexcept
      : file_{std::move(other.file_)}, plain_{std::exchange(other.plain_, false)}, range_{other.range_} {}
  buffer& operator=(buffer&&) = delete;

  [[nodiscard]] const tensorhub::memory_range& range() const { return range_; }

 private:
  std::optional<tensorhub::host_memory::allocation> file_;
  bool plain_ = false;
  tensorhub::memory_range range_{};
};

/// All regions of one side.
class arena {
 public:
  arena(memory_choice choice, std::size_t regions, std::uint64_t region_bytes) {
    buffers_.reserve(regions);
    for (std::size_t i = 0; i < regions; ++i) {
      buffers_.emplace_back(choice, region_bytes);
      ranges_.push_back(buffers_.back().range());
    }
  }
  [[nodiscard]] const std::vector<tensorhub::memory_range>& ranges() const { return ranges_; }
  [[nodiscard]] std::uint64_t bytes() const {
    return ranges_.empty() ? 0 : ranges_.front().bytes * ranges_.size();
  }

  /// Writes to every page; the seconds that took. The first call pays for the kernel's zeroing and mapping.
  double touch() const {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const auto started = std::chrono::steady_clock::now();
    for (const auto& range : ranges_) {
      for (std::uint64_t at = 0; at < range.bytes; at += page)
        *static_cast<volatile std::byte*>(range.data + at) = std::byte{1};
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }

 private:
  std::vector<buffer> buffers_;
  std::vector<tensorhub::memory_range> ranges_;
};

/// What the target holds before it is read into. The pattern has it by chance in one byte of 256.
inline constexpr std::byte untouched{0xA5};

/// The eight bytes at `word * 8` of a region: a hash (splitmix64) of where they are and of the seed, so that
/// bytes of another place, region or run are wrong bytes.
[[nodiscard]] inline std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t region,
                                                std::uint64_t word) {
  std::uint64_t z = seed + region * 0xD1342543DE82EF95ull + word * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}
[[nodiscard]] inline std::byte pattern_byte(std::uint64_t seed, std::uint64_t region, std::uint64_t offset) {
  const std::uint64_t word = pattern_word(seed, region, offset / 8);
  return static_cast<std::byte>(word >> (8 * (offset % 8)));
}

inline void fill_pattern(const arena& memory, std::uint64_t seed) {
  for (std::uint64_t region = 0; region < memory.ranges().size(); ++region) {
    const auto& range = memory.ranges()[region];
    std::uint64_t at = 0;
    for (; at + 8 <= range.bytes; at += 8) {
      const std::uint64_t word = pattern_word(seed, region, at / 8);
      std::memcpy(range.data + at, &word, 8);
    }
    for (; at < range.bytes; ++at) range.data[at] = pattern_byte(seed, region, at);
  }
}

inline void clear_target(const arena& memory) {
  for (const auto& range : memory.ranges())
    std::memset(range.data, std::to_integer<int>(untouched), range.bytes);
}

/// The first wrong byte of a check, and how many there are.
struct wrong_bytes {
  std::uint64_t count = 0;
  std::uint64_t region = 0;
  std::uint64_t offset = 0;
  std::byte expected{};
  std::byte found{};
};

/// Checks the target after a round of reads of `size` bytes (the walk: contender.hpp): places that were read
/// must hold the pattern, and everything else must be as `clear_target` left it.
class target_check {
 public:
  target_check(const arena& memory, std::uint64_t seed, std::uint64_t size)
      : memory_{memory},
        seed_{seed},
        size_{size},
        per_region_{memory.ranges().front().bytes / size},
        read_(per_region_ * memory.ranges().size(), false) {}

  /// `walked`: reads of each thread.
  void mark(const std::vector<std::uint64_t>& walked) {
    const std::uint64_t places = read_.size();
    for (std::uint64_t thread = 0; thread < walked.size(); ++thread) {
      for (std::uint64_t k = 0; k < std::min(walked[thread], places); ++k)
        read_[(k * walked.size() + thread) % places] = true;
    }
  }

  [[nodiscard]] wrong_bytes run() const {
    wrong_bytes out;
    for (std::uint64_t region = 0; region < memory_.ranges().size(); ++region) {
      const auto& range = memory_.ranges()[region];
      for (std::uint64_t place = 0; place < per_region_; ++place)
        check(out, region, place * size_, size_, read_[region * per_region_ + place]);
      check(out, region, per_region_ * size_, range.bytes - per_region_ * size_, false);
    }
    return out;
  }
  [[nodiscard]] std::uint64_t checked_places() const {
    return static_cast<std::uint64_t>(std::ranges::count(read_, true));
  }

 private:
  void check(wrong_bytes& out, std::uint64_t region, std::uint64_t begin, std::uint64_t bytes,
             bool was_read) const {
    const std::byte* const data = memory_.ranges()[region].data;
    const std::uint64_t end = begin + bytes;
    for (std::uint64_t at = begin; at < end;) {
      if (at % 8 == 0 && at + 8 <= end) {  // the usual case: eight at once
        std::uint64_t word = 0;
        std::memcpy(&word, data + at, 8);
        if (word == (was_read ? pattern_word(seed_, region, at / 8) : 0xA5A5A5A5A5A5A5A5ull)) {
          at += 8;
          continue;
        }
      }
      const std::uint64_t stop = std::min(end, at / 8 * 8 + 8);
      for (; at < stop; ++at) {
        const std::byte expected = was_read ? pattern_byte(seed_, region, at) : untouched;
        if (data[at] == expected) continue;
        if (out.count++ == 0) {
          out.region = region;
          out.offset = at;
          out.expected = expected;
          out.found = data[at];
        }
      }
    }
  }

  const arena& memory_;
  std::uint64_t seed_;
  std::uint64_t size_;
  std::uint64_t per_region_;
  std::vector<bool> read_;
};

}  // namespace transport_bench
