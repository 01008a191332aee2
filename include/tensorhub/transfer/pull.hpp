#pragma once
/// \file pull.hpp
/// One shard's transfer as a pure state machine. It decides which chunk to read next from which source, and
/// which of the bytes that arrived may be believed.
///
/// The shell opens *channels*: one for each pair of a reading thread (a *lane*) and a source. It asks each
/// channel for tasks, performs them as one-sided reads and reports the results. A channel takes any missing
/// chunk that its source has, so channels and sources share the work according to their speed.
///
///     missing --take--> in flight --arrived, digest right--> unconfirmed --header read again, unchanged-->
///     confirmed
///        ^                  |                                    |
///        +---- read failed, source lost, digest wrong, header changed
///
///     missing --its digest is that of what lies here--> being checked --digest right--> confirmed
///                                                             +--digest wrong--> missing
///
/// A source is believed in four steps. First, its control block names the incarnation, epoch, version and
/// layout of the lease. Second, the root over its digest table is the root that the server knows. Third,
/// every chunk has the digest of the table. Fourth, the header is still the same when it is read *after* the
/// chunk has arrived (control_block.hpp). One header read confirms all chunks that had arrived on that
/// channel before the header read was posted.
///
/// Over a channel whose reads look at the source's memory in the order of their posting, the last header read
/// does not wait for the chunks: it is posted behind them (it *chases* them) and spares a round trip. Over a
/// wide-area path so does every header read of a source that has all chunks: there is always one behind some
/// chunks that are on their way, the first behind the first chunk.
///
/// A shard of one chunk, and over a wide-area path one that fits the window, is read *ahead* of its source's
/// control block, if the server has named the memory of its segments: first the chunks, by one channel, then
/// the block, behind them or after them. What has arrived counts when the block has passed the first two
/// steps, names the same memory, and has the digests: it is also the header that was read after the chunks.
/// The bytes cannot be older than the version, because the source had shown it before the lease was given.
///
/// A version may be *open*: its publisher still fills it, and no lease has a root. The publisher shows each
/// chunk with its digest when it is ready, so the pull reads digests together with the map, and believes a
/// chunk that has the digest which was shown first for it. The pull is done only when it has been told the
/// root (`commit`), and the table that it has collected is the one with that root (`settle`).
///
/// A source may itself be receiving. The reader then follows the chunk map of the source: it reads header and
/// map together, again after each batch of chunks (that read also confirms the batch), and otherwise at an
/// interval that doubles while the map has no news. The reader prefers chunks that none of its other sources
/// has, because its own readers will want them; after those it takes any chunk (rarest first, as in B. Cohen,
/// "Incentives build robustness in BitTorrent", 2003, limited to what this reader can see). Readers begin at
/// different chunks, so that the readers of one source soon have chunks to exchange. From a source that has
/// all chunks, a reader takes a chunk that other sources have only if there is nothing else to do. All
/// readers of such a source together therefore read each of its chunks about once.
///
/// Readers have nothing to exchange before their first chunks have arrived, and what the readers of one
/// source ask for arrives in turns. A reader that is not alone therefore begins with one chunk. At the end,
/// the last chunks that no other source has are left to the other readers, up to as many as those may be
/// reading.
///
/// No chunk is read twice at the same time, because an outstanding read may still write. If a source is much
/// slower than another source that could do its last reads, the pull therefore drops the whole source; its
/// reads end, and their chunks are read from other sources.
///
/// Thread safety: none; the shell serialises all calls. Calls are short: no call touches the bytes of a
/// chunk.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transfer/control_block.hpp"
#include "tensorhub/transfer/far_window.hpp"
#include "tensorhub/transfer/known_digests.hpp"
#include "tensorhub/transfer/missing_chunks.hpp"
#include "tensorhub/transfer/present_chunks.hpp"
#include "tensorhub/transfer/pull_stalls.hpp"
#include "tensorhub/transfer/pull_task.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/layout.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

class pull {
 public:
  /// Borrows `shape`. `first_chunk` is the chunk at which this reader starts: readers that start at different
  /// chunks soon have chunks to exchange.
  pull(const layout& shape, pull_options options, chunk_index first_chunk);

  /// What lies in the target memory, by chunk, as far as it is known (zero: it is not). Before any report.
  /// The shell has to do what `next_check` asks for: the pull ends only then.
  void assume(std::span<const digest128> present) { present_.assume(present); }

  // ---- sources and channels -----------------------------------------------------------------------------

  source_slot add_source(const pull_source& source);

  /// No new chunk is taken from this source; reads in flight end normally.
  void retire_source(source_slot slot);

  /// The shell reports that it cannot use a source, for example because connecting failed.
  void lose_source(source_slot slot, errc reason, std::string detail,
                   std::optional<chunk_index> chunk = std::nullopt);

  /// `ordered_read_bytes`: as the channel's endpoint says (concepts/transport.hpp).
  channel_id open_channel(source_slot slot, lane_id lane = 0, std::uint64_t ordered_read_bytes = 0);
  /// Its endpoint is another one from now on. Pre-condition: no read of the channel is outstanding.
  void reconnected(channel_id channel, std::uint64_t ordered_read_bytes);

  /// The network's round trip on this channel now, or less, as the transport has measured it.
  void measured(channel_id channel, duration round_trip) noexcept {
    channels_[channel].round_trip = round_trip;
  }

  /// The open version is whole, and this is its root (zero: no digests to check).
  void commit(digest128 root);
  /// Set while the root of `table()` has to be compared with this one: call `settle` then.
  [[nodiscard]] std::optional<digest128> unsettled() const noexcept { return digests_.unsettled(); }
  /// They agree: everything that was believed is of the published version.
  void settle() noexcept { digests_.settle(); }
  /// They do not. Half of a digest may have been read before it was written: those of chunks that are still
  /// missing are read again. False: there are none, or that has not helped; nothing that was read may be
  /// used.
  [[nodiscard]] bool doubt_digests();

  /// These chunks first, in this order, instead of the ones that were preferred before; then any, as ever.
  void prefer(std::span<const chunk_index> chunks) { preferred_.assign(chunks.begin(), chunks.end()); }

  // ---- tasks --------------------------------------------------------------------------------------------

  /// The next task for a channel, or empty if there is nothing to post now. Ask again after any report on any
  /// channel, and at the time `due`.
  [[nodiscard]] std::optional<pull_task> next(channel_id id, time_point now = {});

  /// The time at which `next` may have a task for this channel even if nothing is reported meanwhile.
  [[nodiscard]] time_point due(channel_id id) const noexcept;

  /// This lane is about to do something that may take long, and will not see its reads end before it asks for
  /// a task again.
  void leave_reads(lane_id lane);
  /// The lane has said so, and has not asked for a task since.
  [[nodiscard]] bool is_away(lane_id lane) const noexcept {
    return lane < lanes_.size() && lanes_[lane].is_away;
  }

  /// The shell could not post a task of `next` (the queue was full) and gives it back.
  void not_posted(channel_id id, const pull_task& task);

  // ---- reports ------------------------------------------------------------------------------------------

  /// `block`: the whole control block of the source. `root`: the digest over its digest table, made by the
  /// integrity policy (zero if the policy makes none). Returns true if the source is believed;
  /// `segments(slot)` is set then.
  bool block_arrived(channel_id id, completion_status status, std::span<const std::byte> block,
                     digest128 root, time_point now = {});

  /// `digest`: of the bytes that arrived. The pull ignores it if the lease has no root. True: the shell asks
  /// for the tasks of other lanes, too, because the source's window has opened.
  bool chunk_arrived(channel_id id, chunk_index chunk, completion_status status, digest128 digest,
                     time_point now = {});

  /// The result of a task `header`. True: the source has new chunks, and more to take than this channel's
  /// lane has room for; the shell asks for the tasks of other lanes, too.
  bool header_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                      time_point now = {}) {
    return look_arrived(id, status, bytes, false, now);
  }
  /// The result of a task `map`: `bytes` are the first `map_bytes()` of the control block. True: likewise.
  bool map_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes,
                   time_point now = {});

  /// A chunk that may be here already: its bytes are to be digested, and `checked` is to be called. Empty:
  /// none is, as far as is known now; ask again after any report.
  [[nodiscard]] std::optional<chunk_index> next_check();
  /// True: it is not here, so other channels may have tasks now.
  bool checked(chunk_index chunk, digest128 digest, time_point now);

  // ---- state --------------------------------------------------------------------------------------------

  [[nodiscard]] bool done() const noexcept { return confirmed_ == states_.size() && !digests_.is_open(); }
  /// What a task `map` reads: header and map, and the digests of a version that was open.
  [[nodiscard]] std::uint64_t map_bytes() const noexcept;
  [[nodiscard]] std::uint64_t confirmed_chunks() const noexcept { return confirmed_; }
  [[nodiscard]] std::uint64_t confirmed_bytes() const noexcept { return confirmed_bytes_; }
  /// The number of confirmed chunks that were read from this source.
  [[nodiscard]] std::uint64_t chunks_from(source_slot slot) const noexcept { return sources_[slot].chunks; }
  [[nodiscard]] std::uint64_t bytes_from(source_slot slot) const noexcept { return sources_[slot].bytes; }
  /// Of the confirmed chunks, those that were here already.
  [[nodiscard]] std::uint64_t unchanged_bytes() const noexcept { return present_.unchanged_bytes(); }
  /// What lies in the target memory now, as at `assume`.
  [[nodiscard]] std::span<const digest128> present() const noexcept { return present_.table(); }
  /// No chunk read was ever handed out and no check was wrong, so the target memory is as it was assumed.
  [[nodiscard]] bool intact() const noexcept { return !present_.is_touched(); }
  [[nodiscard]] const layout& shard_layout() const noexcept { return *layout_; }
  [[nodiscard]] const pull_source& facts(source_slot slot) const noexcept { return sources_[slot].facts; }
  [[nodiscard]] std::size_t source_count() const noexcept { return sources_.size(); }
  [[nodiscard]] bool is_confirmed(chunk_index chunk) const noexcept {
    return states_[chunk] == chunk_state::confirmed;
  }
  /// How many chunk reads a lane may have outstanding near, and from one source far.
  [[nodiscard]] std::size_t most_reads() const noexcept {
    return options_.window_chunks + most_reads_beside + most_far_reads();
  }
  /// The number of this channel's chunk reads that have not ended.
  [[nodiscard]] std::size_t in_flight(channel_id id) const noexcept { return channels_[id].reads.size(); }

  /// Of a source that is believed, or read ahead of that; stable until the end of the pull.
  [[nodiscard]] std::span<const remote_region> segments(source_slot slot) const noexcept {
    return sources_[slot].segments;
  }
  [[nodiscard]] std::span<const digest128> table() const noexcept { return digests_.table(); }

  /// Chunks confirmed since the last call. Readers may be shown these chunks.
  [[nodiscard]] std::span<const chunk_index> take_confirmed();

  /// A source that the pull has dropped. Each is returned once, in the order of the failures. The shell asks
  /// the session for another source.
  [[nodiscard]] std::optional<source_failure> take_failure();

  /// `take_failure` will return a failure.
  [[nodiscard]] bool has_failure() const noexcept { return !failures_.empty(); }

  /// Returns true once per stall: no source has had a new chunk for `stall_timeout` (or `orphan_timeout`).
  [[nodiscard]] bool take_stall(time_point now) noexcept;
  /// `take_stall` reports again if the stall continues after this call.
  void forgive_stall(time_point now) noexcept { stalls_.forgive(now); }

  /// Returns true once per *shortage*: no source is known to have every chunk, and no read was begun for a
  /// while although a lane's window had room. A source that has every chunk would help, even if the others go
  /// on.
  [[nodiscard]] bool take_shortage(time_point now) noexcept;

  /// No read of this source is outstanding, no chunk of it waits for a header, and no more will be taken.
  [[nodiscard]] bool is_idle(source_slot slot) const noexcept;
  [[nodiscard]] bool is_lost(source_slot slot) const noexcept {
    return sources_[slot].state == source_state::lost;
  }
  /// Neither lost nor retired: chunks may be taken from it, once it is believed.
  [[nodiscard]] bool is_wanted(source_slot slot) const noexcept {
    return !is_lost(slot) && !sources_[slot].retiring;
  }

 private:
  /// `unchecked`: it may be here already, and nobody has been asked to check it.
  enum class chunk_state : std::uint8_t { missing, in_flight, unconfirmed, confirmed, unchecked, checking };
  /// `unknown`: nothing of the source was read. `ahead`: only chunks were, through one channel. `reading`: a
  /// read of its header or block is outstanding.
  enum class source_state : std::uint8_t { unknown, ahead, reading, believed, lost };

  struct read_times {
    duration usual{};                     ///< average time of one chunk read
    duration shortest = duration::max();  ///< of any read: a round trip, as far as is known
    void add(duration took) noexcept { shortest = std::min(shortest, std::max(took, duration{1})); }
  };
  struct source_record {
    pull_source facts{};
    source_state state = source_state::unknown;
    bool seen = false;      ///< receiving sources only: the header was that of the lease
    bool complete = false;  ///< the source has every chunk; its map does not matter
    bool may_have = false;  ///< the source may have a chunk that is missing here
    bool begun = false;
    bool waited_in_vain = false;  ///< the last chunks were left to others, and nothing came
    time_point first_posted{};    ///< its first chunk read, or the first after that one failed
    chunk_index cursor = 0;       ///< the chunk after the last one taken
    bool map_pending = false;
    bool retiring = false;
    std::vector<std::uint64_t> map{};
    time_point next_poll{};
    duration poll_interval{};
    read_times times{};
    std::uint64_t chunks = 0;
    std::uint64_t bytes = 0;
    std::vector<remote_region> segments{};
    channel_id ahead_through = 0;                   ///< in state `ahead`
    std::vector<std::optional<digest128>> early{};  ///< by chunk: of what has arrived before the table
  };
  struct read_record {
    chunk_index chunk = 0;
    time_point posted{};
  };
  struct channel_record {
    source_slot slot = 0;
    lane_id lane = 0;
    std::vector<read_record> reads{};        ///< in flight, oldest first
    std::uint64_t reading_bytes = 0;         ///< of those
    far_window window{};                     ///< of these bytes, if the source is far
    duration round_trip{};                   ///< as `measured`
    bool look_pending = false;               ///< a header or map read is outstanding
    time_point look_posted{};                ///< the last one, or the last read of the block
    std::vector<chunk_index> unconfirmed{};  ///< arrived since the last header read was posted
    time_point oldest_unconfirmed{};
    std::vector<chunk_index> confirming{};  ///< the source showed them before the header read outstanding
    std::uint64_t ordered_read_bytes = 0;
    std::vector<chunk_index> chased{};   ///< in flight, and posted before the header read that is outstanding
    std::vector<chunk_index> proven{};   ///< in flight, and the header that was read behind them was right
    std::optional<chunk_index> found{};  ///< scratch of find_chunk
    bool awaits_room = false;            ///< its last task could not be posted: a completion comes first
    /// The source has chunks, but until then they are left to other sources, or it may only start.
    time_point defers_until = time_point::never();
  };
  struct lane_record {
    std::vector<channel_id> channels{};
    std::size_t in_flight = 0;  ///< reads from other datacenters not included
    time_point last_posted{};
    bool is_away = false;        ///< since `leave_reads`
    time_point attends_since{};  ///< when it was back
  };

  // ---- looking at a source

  /// A receiving source may not have begun yet. Its header is read until it is the header of the lease.
  [[nodiscard]] std::optional<pull_task> first_look(channel_record& c, source_record& from, time_point now);

  /// Confirms what has arrived, asks a receiving source for news, or chases the last chunks. `may_take`: it
  /// has a chunk to take.
  [[nodiscard]] std::optional<pull_task> look_again(channel_record& c, source_record& from, bool may_take,
                                                    time_point now);

  /// The whole shard may be read before anything else of this source.
  [[nodiscard]] bool may_read_ahead(const source_record& from) const;
  [[nodiscard]] std::optional<pull_task> read_ahead(channel_id id, time_point now);
  /// The block has come: are these the digests of the chunks that came before? Loses the source if not.
  [[nodiscard]] bool check_early(source_slot slot);

  [[nodiscard]] bool wants_header(const channel_record& c, bool may_take, time_point now) const;
  /// A header read would look at the source after the reads in flight, which are the last ones, or take long.
  [[nodiscard]] bool may_chase(const channel_record& c) const noexcept;
  /// A read of `bytes` would look at the source after the reads in flight, if there are any.
  [[nodiscard]] bool looks_last(const channel_record& c, std::uint64_t bytes) const noexcept;
  /// A look is about to be posted: it will prove what has arrived, and if it `looks_last` what is in flight.
  static void look_behind(channel_record& c, bool looks_last);
  /// The look was right.
  void confirm_looked_at(channel_record& c, source_record& from);

  bool look_arrived(channel_id id, completion_status status, std::span<const std::byte> bytes, bool with_map,
                    time_point now);

  void confirm(chunk_index chunk, source_record& from);
  /// Its bytes are here, and are those of the version.
  void note_confirmed(chunk_index chunk);
  /// The table is known: what may be here already is checked.
  void find_present();

  /// True: the map has news.
  bool apply_map(source_slot slot, std::span<const std::byte> bytes, time_point now);
  /// Takes over digests that were not known yet from `bytes`, and clears in `scratch_` what is not to be
  /// believed: chunks without a digest, or with another one than was shown first.
  void learn_digests(source_slot from, std::span<const std::byte> bytes);
  /// What this source has shown may be another version's: it may have changed between the header and the
  /// digests of one look. Chunks whose bytes are here have proved theirs.
  void forget_digests_of(source_slot from);
  /// A chunk does not have the digest that was shown first: whichever of the two was wrong, both are read
  /// again.
  void forget_digest(chunk_index chunk);
  void wait_longer(source_record& from, time_point now);
  /// More than `looks_per_read` looks per chunk read would find little.
  [[nodiscard]] duration shortest_interval() const noexcept;

  // ---- chunks

  [[nodiscard]] std::size_t most_far_reads() const noexcept {
    return options_.far_window_chunks * (layout_->chunk_bytes() / layout_->packed_below_bytes());
  }
  /// Multiplied by any number of chunks of a window, it does not overflow.
  [[nodiscard]] std::uint64_t window_chunk_bytes() const noexcept {
    return std::min<std::uint64_t>(layout_->chunk_bytes(), limits::shard_bytes);
  }
  /// How the near sources of a lane share its window. Each may have its share outstanding, whatever the
  /// others hold, which may have fallen silent; and one more if the window cannot be divided, and has room.
  /// A source that is slow beside the quickest one has one read outstanding, which the window does not count:
  /// the reader would get less from its other sources than readers do whose sources are all quick.
  struct window_use {
    duration quickest = duration::max();  ///< the usual time of one chunk read from the quickest source
    std::size_t share = 0;                ///< of each source that is not slow
    std::size_t most = 0;                 ///< likewise, while the window is not full
    std::size_t reads = 0;                ///< outstanding, but for those from slow sources
    std::size_t of_shares = 0;            ///< of those, what is not beyond a source's share
    [[nodiscard]] bool is_slow(const source_record& from) const noexcept {
      return from.times.usual / slow_beside_quickest > quickest;
    }
  };
  static constexpr std::int64_t slow_beside_quickest = 4;
  static constexpr std::size_t most_reads_beside = 8;  ///< the window, by one lane: one for each usual source
  [[nodiscard]] window_use use_of(const lane_record& lane) const noexcept;
  /// How many more chunks this channel may read now.
  [[nodiscard]] std::size_t room(const channel_record& c, time_point now) const noexcept;
  /// How many of the missing chunks this source has.
  [[nodiscard]] std::uint64_t on_offer(const source_record& from) const noexcept;

  /// The chunk to read next from this source; empty if it has no chunk that is missing here.
  [[nodiscard]] std::optional<chunk_index> find_chunk(channel_record& c, source_record& from, time_point now);

  /// Takes one run after the other of chunks that no other source has. The first run begins at this reader's
  /// first chunk. Where a run meets chunks that others have, the next run begins at a random chunk. Chunks
  /// that other sources have are left to those sources unless there is nothing else to do, because this
  /// source has readers that need it more. So are the last chunks that no other source has: sources that
  /// are receiving may be reading them.
  [[nodiscard]] std::optional<chunk_index> find_in_complete(channel_record& c, source_record& from,
                                                            time_point now);

  /// Nothing has arrived from this complete source, and it has other readers.
  [[nodiscard]] bool may_only_start(const source_record& from) const noexcept;
  /// Until then no second chunk is read from a source that may only start; `never()`: one may be read. The
  /// lane of the first one may be busy with something else, or that read may hang.
  [[nodiscard]] time_point starting_until(source_slot slot, time_point now) const noexcept;
  /// Chunk reads of this source in flight.
  [[nodiscard]] std::size_t reads_of(source_slot slot) const noexcept;
  /// The chunks of this source that its other readers may be reading: those that are seen here are taken to
  /// read as much as this one does, and no more than `most_left_to_each`.
  [[nodiscard]] std::uint64_t most_left_to_others(source_slot slot) const noexcept;
  static constexpr std::size_t most_left_to_each = 8;  ///< two lanes with the usual window of 4

  /// Until this time a lane that is reading from other sources leaves the chunks that they have to them.
  [[nodiscard]] time_point busy_until(const channel_record& c) const noexcept {
    return lanes_[c.lane].last_posted + options_.slow_shortest;
  }

  [[nodiscard]] bool has_complete_source(const source_record* without = nullptr) const noexcept;

  /// The chunks of this 64-chunk word that sources other than `without` are known to have.
  [[nodiscard]] std::uint64_t elsewhere(std::size_t word, const source_record& without) const noexcept;

  void take(channel_record& c, chunk_index chunk, time_point now);
  time_point end_read(channel_record& c, chunk_index chunk);
  void give_back(chunk_index chunk);

  /// Drops a source if all chunks are taken, this channel is idle, and that source takes much longer for its
  /// last reads than this channel's source would, which has all these chunks: they may exist nowhere else.
  /// When a lane has been away, the patience with its reads begins anew: they may have ended meanwhile.
  void drop_slow_source(const channel_record& idle, const source_record& able, time_point now);
  struct slow_source {
    source_slot slot = 0;
    read_record oldest{};
    time_point due{};           ///< when its time is over
    bool is_elsewhere = false;  ///< `able` is known to have what it is reading
  };
  /// Of the sources that `able` could replace, the one whose time ends first; if there is none, of those that
  /// it could replace once it has their chunks.
  [[nodiscard]] std::optional<slow_source> find_slow_source(const channel_record& idle,
                                                            const source_record& able) const;
  /// Of the reads that the last chunks wait for: of a chunk, or of the header that confirms some.
  [[nodiscard]] static std::optional<read_record> oldest_read(const channel_record& c) noexcept;
  /// A source that has not all chunks has those that are not confirmed of that one.
  [[nodiscard]] bool has_reads_of(const source_record& able, source_slot slot) const noexcept;
  /// When this channel's source is to be asked whether it has what a slow one does not bring.
  [[nodiscard]] time_point asks_for_slow(const channel_record& c, const source_record& from) const;

  [[nodiscard]] duration stall_patience() const noexcept;

  // ---- belief

  bool lost(source_slot slot, errc reason, std::string detail,
            std::optional<chunk_index> chunk = std::nullopt);
  [[nodiscard]] std::string without_its_digest(chunk_index chunk) const;
  [[nodiscard]] static bool matches(const control_header& header, const source_record& from) noexcept;
  /// True for a source that will receive this version but has not begun.
  [[nodiscard]] static bool is_early(const control_header& header, const pull_source& facts) noexcept;
  /// A source that was receiving may end its own update at any time; one that had everything has broken the
  /// contract.
  [[nodiscard]] static errc code_of_change(const control_header& header, const source_record& from) noexcept;
  [[nodiscard]] static std::string changed(const control_header& header, const pull_source& facts);
  [[nodiscard]] static errc errc_of(completion_status status) noexcept;
  [[nodiscard]] static std::string text(completion_status status) { return std::string{to_string(status)}; }

  const layout* layout_;
  pull_options options_;
  std::vector<chunk_state> states_;
  missing_chunks missing_;  ///< those of state `missing`
  detail::repeatable_random random_;
  chunk_index start_ = 0;
  std::uint64_t confirmed_ = 0;
  std::uint64_t confirmed_bytes_ = 0;
  present_chunks present_;
  known_digests digests_;
  pull_stalls stalls_;
  duration usual_{};                   ///< average time of one chunk read, over all sources
  std::deque<source_record> sources_;  ///< a deque, because callers borrow segments
  std::vector<channel_record> channels_;
  std::vector<lane_record> lanes_;
  std::vector<chunk_index> preferred_;  ///< not confirmed when they were last looked at
  std::vector<chunk_index> fresh_;      ///< confirmed, not yet taken by `take_confirmed`
  std::vector<chunk_index> taken_;
  std::vector<std::uint64_t> scratch_;
  std::deque<source_failure> failures_;  ///< not yet taken by `take_failure`
};

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/impl/pull.ipp"
#include "tensorhub/transfer/impl/pull_choice.ipp"
#include "tensorhub/transfer/impl/pull_look.ipp"
#endif
