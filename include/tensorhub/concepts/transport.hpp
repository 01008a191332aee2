#pragma once
/// \file transport.hpp
/// Concept `transport`: one-sided reads of registered memory of other processes.
///
/// A process has one transport object. The object owns the listening side, which answers the reads of peers
/// without any call of the user. To read, a thread makes a `queue`, connects an `endpoint` on it, posts reads
/// into registered regions and polls completions. A queue is the thread's own: one thread at a time may post,
/// poll and wait on it; several threads may use several queues at once.
///
/// The promises of every transport, which the conformance suite checks (testing/transport_conformance.hpp):
///  1. Every posted read completes exactly once, with an error within the peer time-out when the peer is
///     gone; also when the endpoint is destroyed first (`cancelled`). Reads of other endpoints of the queue
///     do not notice either: endpoints to several sources share a queue. After a queue's destruction no byte
///     of its targets changes any more.
///  2. Only a completion means that bytes are visible. Order between reads is not promised.
///  3. A read outside of a registered region, with a stale, foreign or revoked key delivers no byte of that
///     memory: it ends in `access_denied` (or, where the device cannot tell, `peer_lost`). Keys are random,
///     except for what a device chooses: no key follows from another one.
///  4. `queue_full` posts nothing: the read has no completion.
///  5. When `~memory_region`, `revoke` or `cut_off` has returned, no read that it covers can deliver bytes
///     that change after the return. (Bytes taken before may still arrive: the reader's check of the control
///     block rejects them.) Second form, for transports that send by reference (pages on their way are read
///     when they are delivered): a read that is outstanding at that moment may end `ok` with later bytes, but
///     on that endpoint no read that is posted after its completion ends `ok`. The reader's check of the
///     control block, which is such a read, therefore fails.
///  6. Registration is all or nothing.
///  7. An endpoint reaches exactly the incarnation it was connected to; another process at the same address
///     refuses it.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/completion.hpp"
#include "tensorhub/types/ids.hpp"
#include "tensorhub/types/memory.hpp"
#include "tensorhub/types/units.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Opt-in: `using concept_tag = transport_tag;`
struct transport_tag {};

/// The facts that a caller may query instead of comparing a transport's name.
struct transport_capabilities {
  std::uint64_t max_read_bytes = UINT64_MAX;  ///< largest single read
  /// Largest single region; larger memory is registered in pieces.
  std::uint64_t max_region_bytes = UINT64_MAX;
  bool survives_access_errors = false;  ///< an endpoint stays usable after `access_denied`
  bool crosses_hosts = false;           ///< reaches processes on other machines
  /// Also reaches processes over a wide-area path, with its delays and losses.
  bool crosses_datacenters = false;
  bool reads_device_memory = false;  ///< regions may be CUDA device memory
  bool uses_backing_file = false;    ///< memory_range::backing_fd reduces the cost at the source
  bool sends_by_reference = false;   ///< promise 5 holds in its second form
  /// `revoke` costs neither the source nor its readers more than a lock: workers do it at every unpublish.
  bool revokes_cheaply = false;
  bool encrypts = false;  ///< whoever is on the wire can neither read the bytes nor change them
};

// | expression                             | type                   | means                                 |
// |----------------------------------------|------------------------|---------------------------------------|
// | T::concept_tag                         | transport_tag          | the author has read this table        |
// | T::name                                | string_view            | for people and addresses; never for   |
// |                                        |                        | decisions                             |
// | T::capabilities                        | transport_capabilities | constexpr                             |
// | T::options                             | aggregate              | default-constructible                 |
// | T{options, self}                       |                        | listens; `self` is this process's     |
// |                                        |                        | incarnation; throws                   |
// |                                        |                        | `transport_failed`                    |
// | t.address()                            | transport_address      | what peers pass to `connect`          |
// | T::memory_region                       | movable RAII           | not copyable                          |
// | t.register_memory(ranges, access)      | vector<memory_region>  | one region per range, all or none;    |
// |                                        |                        | throws, naming the range. Zero-byte   |
// |                                        |                        | ranges are `invalid_argument`         |
// | r.range()                              | memory_range           | the registered memory; noexcept       |
// | ~memory_region                         |                        | deregisters (promise 5); noexcept     |
// | t.registered_bytes()                   | uint64_t               | sum over live regions; noexcept       |
// | t.describe(region)                     | remote_region          | what peers need to read it            |
// | t.revoke(region)                       | void                   | the keys given out so far stop        |
// |                                        |                        | working (promise 5), `describe` gives |
// |                                        |                        | a new one; noexcept                   |
// | t.cut_off(peer)                        | void                   | closes every connection from that     |
// |                                        |                        | incarnation and refuses new ones, for |
// |                                        |                        | ever (promise 5); noexcept            |
// | T::queue                               | movable RAII           | not copyable                          |
// | t.make_queue(depth)                    | T::queue               | at most `depth` (>= 1) reads          |
// |                                        |                        | outstanding; throws                   |
// | T::endpoint                            | movable RAII           | not copyable                          |
// | t.connect(queue, address, peer,        | T::endpoint            | throws `transport_failed` (refused,   |
// |           timeout)                     |                        | other process, other protocol),       |
// |                                        |                        | `timed_out`, or `system_failed`: this |
// |                                        |                        | machine gives no descriptor or thread |
// |                                        |                        | to connect with, and another source   |
// |                                        |                        | would not help. The queue must        |
// |                                        |                        | outlive the endpoint                  |
// | e.peer()                               | incarnation            | noexcept                              |
// | e.usable()                             | bool                   | false once a read ended in an error   |
// |                                        |                        | that broke it; noexcept               |
// | e.ordered_read_bytes()                 | uint64_t               | optional: of at most so many bytes,   |
// |                                        |                        | two reads of this endpoint look at    |
// |                                        |                        | the source's memory in the order of   |
// |                                        |                        | their posting, each at all its bytes; |
// |                                        |                        | they may complete in any order.       |
// |                                        |                        | Absent: 0; noexcept                   |
// | e.round_trip()                         | duration               | optional: the network's as it is now, |
// |                                        |                        | without any wait for other reads, or  |
// |                                        |                        | less; noexcept                        |
// | q.post_read(e, into, offset, from, id) | post_result            | reads `from` to bytes [offset, offset |
// |                                        |                        | + from.bytes) of the local region     |
// |                                        |                        | `into`; noexcept. A read that does    |
// |                                        |                        | not fit the region completes          |
// |                                        |                        | `local_error`; on a broken endpoint   |
// |                                        |                        | it completes `peer_lost`; zero bytes  |
// |                                        |                        | complete `ok` (or as the key          |
// |                                        |                        | deserves)                             |
// | q.poll(completions)                    | size_t                 | fills at most the span; never blocks; |
// |                                        |                        | noexcept                              |
// | q.wait(timeout)                        | void                   | returns when `poll` may find          |
// |                                        |                        | something, after a `wake`, or at the  |
// |                                        |                        | time-out; noexcept                    |
// | q.wake()                               | void                   | ends a `wait` now or next; any        |
// |                                        |                        | thread; noexcept                      |
// | q.outstanding()                        | size_t                 | posted, not yet polled; noexcept      |
//
// (Laid out by hand: clang-format 14 cannot lay out requires-expressions.)
// clang-format off
template <typename T>
concept transport =
    std::same_as<typename T::concept_tag, transport_tag> &&
    std::same_as<std::remove_cv_t<decltype(T::capabilities)>, transport_capabilities> &&
    std::default_initializable<typename T::options> &&
    std::constructible_from<T, typename T::options, incarnation> &&
    std::movable<typename T::memory_region> && !std::copy_constructible<typename T::memory_region> &&
    std::movable<typename T::endpoint> && !std::copy_constructible<typename T::endpoint> &&
    std::movable<typename T::queue> && !std::copy_constructible<typename T::queue> &&
    // The transport object: memory, keys, peers.
    requires(T& t, const T& ct, typename T::memory_region& region,
             const typename T::memory_region& const_region, typename T::queue& queue,
             std::span<const memory_range> ranges, region_access access, std::size_t depth,
             const transport_address& address, incarnation peer, duration timeout) {
      { T::name } -> std::convertible_to<std::string_view>;
      { ct.address() } -> std::same_as<transport_address>;
      { t.register_memory(ranges, access) } -> std::same_as<std::vector<typename T::memory_region>>;
      { const_region.range() } noexcept -> std::same_as<memory_range>;
      { ct.registered_bytes() } noexcept -> std::same_as<std::uint64_t>;
      { ct.describe(const_region) } -> std::same_as<remote_region>;
      { t.revoke(region) } noexcept -> std::same_as<void>;
      { t.cut_off(peer) } noexcept -> std::same_as<void>;
      { t.make_queue(depth) } -> std::same_as<typename T::queue>;
      { t.connect(queue, address, peer, timeout) } -> std::same_as<typename T::endpoint>;
    } &&
    // The reading thread: endpoints and queues.
    requires(typename T::queue& queue, const typename T::queue& const_queue,
             typename T::endpoint& endpoint, const typename T::endpoint& const_endpoint,
             const typename T::memory_region& into, std::uint64_t offset, const remote_slice& from,
             request_id id, std::span<completion> completions, duration timeout) {
      { const_endpoint.peer() } noexcept -> std::same_as<incarnation>;
      { const_endpoint.usable() } noexcept -> std::same_as<bool>;
      { queue.post_read(endpoint, into, offset, from, id) } noexcept -> std::same_as<post_result>;
      { queue.poll(completions) } noexcept -> std::same_as<std::size_t>;
      { queue.wait(timeout) } noexcept -> std::same_as<void>;
      { queue.wake() } noexcept -> std::same_as<void>;
      { const_queue.outstanding() } noexcept -> std::same_as<std::size_t>;
    };
// clang-format on

}  // namespace tensorhub::inline TENSORHUB_MODE
