#pragma once
/// \file control_block.hpp
/// The registered memory in which a source shows its state, so that readers can decide without any other
/// process whether the bytes they read are right.
///
///    offset 0     header (128 bytes): holder, epoch, version, layout
///     128          chunk map: one bit per chunk that is held, 64-bit words
///     then         chunk digests: 16 bytes each
///     then         segments: one fixed-size record per layout segment with its remote region
///
/// A control block is a seqlock over one-sided reads (after Boehm, "Can seqlocks get along with programming
/// language memory models?", MSPC 2012, with the network in place of the second thread). The holder raises
/// `epoch` *before* any byte of its weights may change. A reader reads the header again *after* the bytes of
/// a chunk have arrived, and accepts the chunk only if incarnation, epoch, version and state are those of its
/// lease. The protocol is sound because the two reads and the two writes have opposite orders; transports
/// promise that a completed read is visible and that a later read sees later memory.
///
/// A holder that is still receiving also shows the version, in state `receiving`. Then only the chunks whose
/// bit is set may be read. A bit is set when its chunk is confirmed, and it stays set within the epoch; all
/// bits are cleared after the epoch is raised and before `receiving` is shown. A reader that has once seen
/// the header of its lease may therefore believe every bit that it reads afterwards.
///
/// Both ends are little-endian (checked at compile time). Words are stored atomically; the whole block is
/// written only while no version is shown, and when all chunks of a version have been received, which stores
/// what is there already. (Keys that differ were revoked meanwhile: a torn one is refused, as an old one is.)
///
/// Thread safety: one writer at a time, except that several threads may call `add_chunk` at once; any number
/// of remote readers.

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
static_assert(std::atomic_ref<std::uint64_t>::is_always_lock_free,
              "control blocks are read by devices and processes that know no lock of this one");

enum class control_state : std::uint64_t {
  empty = 0,      ///< nothing may be read
  shown = 1,      ///< every chunk may be read
  receiving = 2,  ///< the chunks in the map may be read
};

/// The first bytes of every control block. Readers read them again after each batch of chunks.
struct control_header {
  static constexpr std::uint64_t magic_number = 0x3342'4355'4248'5455ull;  ///< "UTHBUCB3"
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

/// The remote region of one layout segment, in a record of fixed size that can be found without parsing.
struct control_segment {
  std::uint64_t base = 0;
  std::uint64_t bytes = 0;
  std::uint64_t key_bytes = 0;
  std::array<std::byte, limits::remote_key_bytes> key{};
};
static_assert(sizeof(control_segment) == 24 + limits::remote_key_bytes);

/// The offsets of a control block's parts for one layout.
struct control_offsets {
  std::uint64_t bitmap = 0;
  std::uint64_t digests = 0;
  std::uint64_t segments = 0;
  std::uint64_t total_bytes = 0;

  /// The end of header and chunk map, which a reader of a receiving source reads repeatedly.
  [[nodiscard]] std::uint64_t map_end() const noexcept { return digests; }

  [[nodiscard]] static control_offsets of(const layout& shape) noexcept;
};

/// The holder's side. The memory never moves, so it is registered once.
class control_block {
 public:
  /// The number of words that a control block of this layout needs.
  [[nodiscard]] static std::size_t words_for(const layout& shape) noexcept {
    return (control_offsets::of(shape).total_bytes + 7) / 8;
  }

  /// A block in memory that it owns.
  control_block(incarnation holder, const layout& shape)
      : control_block{holder, shape, std::vector<std::uint64_t>(words_for(shape)), {}} {}

  /// A block in the caller's memory, for example in a file that readers on this machine can map. The memory
  /// is overwritten and must outlive the block. Throws `invalid_argument` if it has fewer than `words_for`
  /// words.
  control_block(incarnation holder, const layout& shape, std::span<std::uint64_t> words)
      : control_block{holder, shape, {}, words} {}

  control_block(control_block&&) noexcept = default;
  control_block& operator=(control_block&&) noexcept = default;
  ~control_block() = default;

  [[nodiscard]] std::span<std::byte> memory() noexcept {
    return std::as_writable_bytes(words_).first(offsets_.total_bytes);
  }

  /// The process goes on as another incarnation. Pre-condition: no version is shown.
  void set_holder(incarnation holder) noexcept;

  /// Shows no version. The caller may change the bytes after this returns.
  void raise_epoch(std::uint64_t epoch) noexcept;

  /// Shows `version` with no chunk held: readers may wait for chunks. The caller must have set digests and
  /// segments and raised the epoch.
  void show_receiving(version_number version, std::uint64_t epoch) noexcept;

  /// Adds a chunk whose bytes are verified. They do not change within this epoch.
  void add_chunk(chunk_index chunk) noexcept;

  /// Shows `version`, all of whose chunks are held. The caller must have set digests and segments.
  void show(version_number version, std::uint64_t epoch) noexcept;

  /// One digest per chunk; an empty table (integrity off) leaves zeros.
  void set_digests(std::span<const digest128> table) noexcept;
  /// The same for one chunk, before `add_chunk`.
  void set_digest(chunk_index chunk, digest128 digest) noexcept;

  void set_segment(std::size_t segment, const remote_region& region) noexcept;

 private:
  control_block(incarnation holder, const layout& shape, std::vector<std::uint64_t> own,
                std::span<std::uint64_t> borrowed);

  [[nodiscard]] std::uint64_t map_words() const noexcept { return (chunk_count_ + 63) / 64; }
  [[nodiscard]] static std::size_t word_of(std::uint64_t control_header::*member) noexcept;

  /// Every device and process sees the writes before this call before it sees those after it.
  static void order_writes() noexcept;

  /// Writes every word that a remote reader may read, and is the only function that does. The other side of
  /// this race is a network device or the kernel, whose order no thread sanitizer can see.
  void store(std::size_t word, std::uint64_t value) noexcept {
    std::atomic_ref{words_[word]}.store(value, std::memory_order_release);
  }

  control_offsets offsets_;
  std::uint64_t chunk_count_;
  std::size_t segment_count_;
  std::vector<std::uint64_t> own_;  ///< empty: the memory is the caller's
  std::span<std::uint64_t> words_;  ///< does not move when the block moves
};

/// Reads the header from bytes that came from a peer. Empty: the bytes are not a control block.
[[nodiscard]] std::optional<control_header> read_control_header(std::span<const std::byte> bytes) noexcept;

/// Reads the chunk map from bytes that begin with the header. Pre-condition: `bytes` has
/// control_offsets::map_end() bytes; `words` has one word per 64 chunks.
void read_control_map(std::span<const std::byte> bytes, std::span<std::uint64_t> words) noexcept;

/// Reads the digest table from a whole control block. Pre-condition: `bytes` has control_offsets::total_bytes
/// bytes.
[[nodiscard]] std::vector<digest128> read_control_digests(std::span<const std::byte> bytes,
                                                          const layout& shape);

/// Reads the remote regions of the segments. Empty: a record does not fit the layout.
[[nodiscard]] std::optional<std::vector<remote_region>> read_control_segments(
    std::span<const std::byte> bytes, const layout& shape);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/control_block.ipp"
#endif
