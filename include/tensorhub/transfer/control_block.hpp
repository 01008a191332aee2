#pragma once
/// \file control_block.hpp
/// What a source shows of itself in registered memory, so that readers need nobody else to know whether bytes
/// are right.
///
///     offset 0     header (128 bytes): who, which epoch, which version, which layout
///     128          chunk map: one bit per chunk that is held, 64-bit words
///     then         chunk digests: 16 bytes each
///     then         segments: one fixed-size record per layout segment with its remote region
///
/// It is a seqlock over one-sided reads (after Boehm, "Can seqlocks get along with programming language
/// memory models?", MSPC 2012, with the network in the place of the second thread): the holder raises `epoch`
/// *before* any byte of its weights may change; a reader reads the header again *after* a chunk's bytes have
/// arrived, and accepts the chunk only if incarnation, epoch, version and state are those of its lease. The
/// opposite order of the two reads and the two writes is what makes it sound; transports promise that a
/// completed read is visible and a later read sees later memory.
///
/// A holder that is still receiving shows the version too, in state `receiving`: then only the chunks whose
/// bit is set are there. Bits are set as chunks are confirmed and never taken back within an epoch; they are
/// cleared between the raising of the epoch and the showing of `receiving`. So a reader that has once seen
/// the header of its lease may believe every bit that it reads from then on.
///
/// Both ends are little-endian (checked at compile time). Words are stored atomically, whole-block updates
/// happen while no version is shown.
///
/// Thread safety: one writer at a time, except that `add_chunk` may be called by several threads at once; any
/// number of remote readers.

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/version_number.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

static_assert(std::endian::native == std::endian::little,
              "control blocks are read by other machines as they are");

enum class control_state : std::uint64_t {
  empty = 0,      ///< nothing may be read
  shown = 1,      ///< every chunk may be read
  receiving = 2,  ///< the chunks in the map may be read
};

/// The first bytes of every control block. Read again after each batch of chunks.
struct control_header {
  static constexpr std::uint64_t magic_number = 0x3142'4355'4248'5455ull;  ///< "UTHBUCB1"
  std::uint64_t magic = magic_number;
  std::uint64_t holder = 0;  ///< incarnation
  std::uint64_t epoch = 0;
  std::uint64_t version = 0;
  std::uint64_t state = 0;  ///< control_state
  std::uint64_t layout_low = 0;
  std::uint64_t layout_high = 0;
  std::uint64_t chunk_count = 0;
  std::uint64_t segment_count = 0;
  std::array<std::uint64_t, 7> reserved{};
};
static_assert(sizeof(control_header) == 128);

/// One layout segment's remote region, fixed size so that it can be found without parsing.
struct control_segment {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t key_bytes = 0;
  std::array<std::byte, limits::remote_key_bytes> key{};
};
static_assert(sizeof(control_segment) == 24 + limits::remote_key_bytes);

/// Where the parts of a control block lie, for a layout.
struct control_offsets {
  std::uint64_t bitmap = 0;
  std::uint64_t digests = 0;
  std::uint64_t segments = 0;
  std::uint64_t total_bytes = 0;

  /// Header and chunk map together: what a reader of a receiving source looks at again and again.
  [[nodiscard]] std::uint64_t map_end() const noexcept { return digests; }

  [[nodiscard]] static control_offsets of(const layout& shape) noexcept;
};

/// The holder's side. The memory never moves; register it once.
class control_block {
 public:
  /// Words that a control block of this shape needs.
  [[nodiscard]] static std::size_t words_for(const layout& shape) noexcept {
    return (control_offsets::of(shape).total_bytes + 7) / 8;
  }

  /// In memory of its own.
  control_block(incarnation holder, const layout& shape)
      : control_block{holder, shape, std::vector<std::uint64_t>(words_for(shape)), {}} {}

  /// In the caller's memory, which is overwritten and must outlive the block: memory in a file that readers
  /// of this machine can map, for instance. Throws `invalid_argument` if it has less than `words_for` words.
  control_block(incarnation holder, const layout& shape, std::span<std::uint64_t> words)
      : control_block{holder, shape, {}, words} {}

  control_block(control_block&&) noexcept = default;
  control_block& operator=(control_block&&) noexcept = default;
  ~control_block() = default;

  [[nodiscard]] std::span<std::byte> memory() noexcept {
    return std::as_writable_bytes(words_).first(offsets_.total_bytes);
  }

  /// Bytes may change after this returns. Nothing is shown.
  void raise_epoch(std::uint64_t epoch) noexcept;

  /// Shows `version`, of which nothing is held yet: readers may wait for chunks. Digests and segments must be
  /// set before, and the epoch raised.
  void show_receiving(version_number version, std::uint64_t epoch) noexcept;

  /// The chunk's bytes are there and verified; they do not change within this epoch.
  void add_chunk(chunk_index chunk) noexcept;

  /// Shows `version`, held completely. Digests and segments must be set before.
  void show(version_number version, std::uint64_t epoch) noexcept;

  /// One digest per chunk; an empty table (integrity off) leaves zeros.
  void set_digests(std::span<const digest128> table) noexcept;

  void set_segment(std::size_t segment, const remote_region& region) noexcept;

  [[nodiscard]] std::vector<digest128> digests() const;

 private:
  control_block(incarnation holder, const layout& shape, std::vector<std::uint64_t> own,
                std::span<std::uint64_t> given);

  [[nodiscard]] std::uint64_t map_words() const noexcept { return (chunk_count_ + 63) / 64; }
  [[nodiscard]] static std::size_t word_of(std::uint64_t control_header::*member) noexcept;

  /// Every word that a remote reader may look at is written here, and here alone: the other side of this race
  /// is a network device or the kernel, which no thread sanitizer can see as ordered.
  void store(std::size_t word, std::uint64_t value) noexcept {
    std::atomic_ref{words_[word]}.store(value, std::memory_order_release);
  }

  control_offsets offsets_;
  std::uint64_t chunk_count_;
  std::size_t segment_count_;
  std::vector<std::uint64_t> own_;  ///< empty: the memory is the caller's
  std::span<std::uint64_t> words_;  ///< never moves, also when the block does
};

/// Reads the header out of bytes that came from a peer. Empty: not a control block.
[[nodiscard]] std::optional<control_header> read_control_header(std::span<const std::byte> bytes) noexcept;

/// Reads the chunk map out of bytes that begin with the header. Pre-condition: `bytes` has
/// control_offsets::map_end(); `words` has one word for 64 chunks.
void read_control_map(std::span<const std::byte> bytes, std::span<std::uint64_t> words) noexcept;

/// Reads the digest table out of a whole control block. Pre-condition: `bytes` has
/// control_offsets::total_bytes.
[[nodiscard]] std::vector<digest128> read_control_digests(std::span<const std::byte> bytes,
                                                          const layout& shape);

/// Reads the segments' regions. Empty: a record does not fit the layout.
[[nodiscard]] std::optional<std::vector<remote_region>> read_control_segments(
    std::span<const std::byte> bytes, const layout& shape);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/control_block.ipp"
#endif
