#pragma once
/// \file guarded_memory.hpp
/// The memory that the rules of the transport conformance suite register: patterns, margins, and checks.
///
/// The rules reach the memory through copies only, so that it may be memory that the CPU cannot touch
/// (device_bytes.hpp).
///
/// Thread safety: none of its own.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/file_limit.hpp"
#include "tensorhub/detail/unique_fd.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

/// Between two neighbouring words of a pattern: odd, so that no word comes twice.
inline constexpr std::uint64_t pattern_step = 0xd1342543de82ef95u;
/// Eight bytes of pattern `seed`. They identify the pattern and their position in it.
[[nodiscard]] constexpr std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t index) noexcept {
  std::uint64_t first = seed * 0x9e3779b97f4a7c15u + 0x2545f4914f6cdd1du;
  first = (first ^ (first >> 32)) * 0xbf58476d1ce4e5b9u;
  first = (first ^ (first >> 29)) * 0x94d049bb133111ebu;
  return (first ^ (first >> 31)) + index * pattern_step;
}

/// Calls `piece(bytes, position)` with the pattern's bytes [first, first + bytes), in pieces.
template <typename Piece>
void for_pattern(std::uint64_t seed, std::uint64_t first, std::uint64_t bytes, Piece&& piece) {
  std::array<std::uint64_t, 512> words;
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t at = first + done;
    const std::uint64_t skipped = at & 7;
    const std::uint64_t count = std::min<std::uint64_t>(bytes - done, sizeof words - skipped);
    std::uint64_t word = pattern_word(seed, at >> 3);
    // By pointers: builds for sanitizers, which are not optimized, spend most of their time here.
    const std::uint64_t* const end = words.data() + (skipped + count + 7) / 8;
    for (std::uint64_t* each = words.data(); each != end; ++each, word += pattern_step) *each = word;
    const auto* const raw = reinterpret_cast<const std::byte*>(words.data());
    piece(std::span{raw + skipped, count}, done);
    done += count;
  }
}

/// A run of memory for the rules. The CPU may be unable to follow `range()`.
class conformance_bytes {
 public:
  conformance_bytes() = default;
  conformance_bytes(const conformance_bytes&) = delete;
  conformance_bytes& operator=(const conformance_bytes&) = delete;
  virtual ~conformance_bytes() = default;

  [[nodiscard]] virtual memory_range range() const = 0;
  virtual void write(std::uint64_t at, std::span<const std::byte> bytes) = 0;
  [[nodiscard]] virtual bool equal(std::uint64_t at, std::span<const std::byte> bytes) const = 0;
  [[nodiscard]] virtual std::vector<std::byte> read(std::uint64_t at, std::uint64_t bytes) const = 0;
};

/// Allocates `bytes` bytes. Throws `system_failed`.
using memory_maker = std::function<std::unique_ptr<conformance_bytes>(std::uint64_t bytes)>;

/// Private memory of the host, or shared memory with a file.
class host_bytes final : public conformance_bytes {
 public:
  host_bytes(std::uint64_t bytes, bool with_file) : bytes_{bytes} {
    if (with_file) {
      // Sealed as the host memory space seals its files, so that a transport may map it.
      descriptor_.reset(::memfd_create("conformance", MFD_CLOEXEC | MFD_ALLOW_SEALING));
      if (!descriptor_ || !detail::set_file_bytes(descriptor_.get(), bytes) ||
          ::fcntl(descriptor_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        throw error{errc::system_failed, "no memfd for the conformance suite"};
    }
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                with_file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, descriptor_.get(), 0);
    if (memory == MAP_FAILED) throw error{errc::system_failed, "no memory for the conformance suite"};
    data_ = static_cast<std::byte*>(memory);
  }
  ~host_bytes() override { ::munmap(data_, bytes_); }

  [[nodiscard]] memory_range range() const override {
    memory_range all{data_, bytes_};
    all.backing_fd = descriptor_.get();
    return all;
  }
  void write(std::uint64_t at, std::span<const std::byte> bytes) override {
    std::memcpy(data_ + at, bytes.data(), bytes.size());
  }
  [[nodiscard]] bool equal(std::uint64_t at, std::span<const std::byte> bytes) const override {
    return std::memcmp(data_ + at, bytes.data(), bytes.size()) == 0;
  }
  [[nodiscard]] std::vector<std::byte> read(std::uint64_t at, std::uint64_t bytes) const override {
    return {data_ + at, data_ + at + bytes};
  }

 private:
  std::uint64_t bytes_;
  detail::unique_fd descriptor_;
  std::byte* data_ = nullptr;
};

/// Pages with known bytes before and after the part that a rule registers, so that a transport that accesses
/// bytes outside the part is detected (and does no harm). Does not move.
class guarded_memory {
 public:
  static constexpr std::uint64_t margin_bytes = 64u << 10;

  explicit guarded_memory(std::uint64_t bytes, bool with_file = false, const memory_maker& maker = {})
      : bytes_{bytes},
        whole_{maker ? maker(whole_bytes()) : std::make_unique<host_bytes>(whole_bytes(), with_file)} {
    fill(0);
  }
  guarded_memory(const guarded_memory&) = delete;
  guarded_memory& operator=(const guarded_memory&) = delete;

  /// Fills everything, including the margins, with the pattern; index 0 is the first byte of the first
  /// margin.
  void fill(std::uint64_t seed) {
    seed_ = seed;
    for_pattern(seed, 0, whole_bytes(), [this](std::span<const std::byte> piece, std::uint64_t position) {
      whole_->write(position, piece);
    });
  }
  /// An address of this kind of memory: rules must not follow it.
  [[nodiscard]] std::byte* data() const { return whole_->range().data + margin_bytes; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  /// [offset, offset + bytes) without the margins; the range must end within `bytes()`.
  [[nodiscard]] memory_range range(std::uint64_t offset, std::uint64_t bytes) const {
    memory_range part = whole_->range();
    part.data += margin_bytes + offset;
    part.bytes = bytes;
    if (part.backing_fd >= 0) part.backing_offset += margin_bytes + offset;
    return part;
  }
  [[nodiscard]] memory_range range() const { return range(0, bytes_); }

  /// Whether bytes [offset, offset + bytes) are those that pattern `seed` gives another guarded_memory at
  /// `seed_offset`.
  [[nodiscard]] bool holds(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
                           std::uint64_t seed_offset) const {
    return matches(margin_bytes + offset, bytes, seed, margin_bytes + seed_offset);
  }
  /// Whether everything outside [offset, offset + bytes), including the margins, is as `fill` left it.
  [[nodiscard]] bool untouched_outside(std::uint64_t offset, std::uint64_t bytes) const {
    const std::uint64_t behind = margin_bytes + offset + bytes;
    return matches(0, margin_bytes + offset, seed_, 0) &&
           matches(behind, whole_bytes() - behind, seed_, behind);
  }
  [[nodiscard]] bool untouched() const { return untouched_outside(0, 0); }
  /// Whether eight successive bytes of [0, bytes) are those that pattern `seed` gives another guarded_memory
  /// there, if the first byte was read from `seed_offset` (which may lie in a margin: negative).
  [[nodiscard]] bool has_bytes_of(std::uint64_t bytes, std::uint64_t seed, std::int64_t seed_offset) const {
    std::uint64_t in_a_row = 0;
    bool seen = false;
    const std::uint64_t first = margin_bytes + static_cast<std::uint64_t>(seed_offset);
    const std::vector<std::byte> own = whole_->read(margin_bytes, bytes);
    for_pattern(seed, first, bytes, [&](std::span<const std::byte> piece, std::uint64_t position) {
      for (std::size_t i = 0; i < piece.size(); ++i) {
        in_a_row = own[position + i] == piece[i] ? in_a_row + 1 : 0;
        seen = seen || in_a_row == 8;
      }
    });
    return seen;
  }
  /// A copy of the bytes at `offset`, which may lie in the margin before (negative) or after.
  [[nodiscard]] std::vector<std::byte> copy_of(std::int64_t offset, std::uint64_t bytes) const {
    return whole_->read(margin_bytes + static_cast<std::uint64_t>(offset), bytes);
  }

 private:
  [[nodiscard]] std::uint64_t whole_bytes() const noexcept { return bytes_ + 2 * margin_bytes; }
  [[nodiscard]] bool matches(std::uint64_t at, std::uint64_t bytes, std::uint64_t seed,
                             std::uint64_t index) const {
    bool same = true;
    for_pattern(seed, index, bytes, [&](std::span<const std::byte> piece, std::uint64_t position) {
      same = same && whole_->equal(at + position, piece);
    });
    return same;
  }
  std::uint64_t bytes_;
  std::uint64_t seed_ = 0;
  std::unique_ptr<conformance_bytes> whole_;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
