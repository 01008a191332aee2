#pragma once
/// \file basic_tcp.hpp
/// The common implementation of the transports over TCP. The template's parameter is a channel, which carries
/// the bytes (plain_channel.hpp). Users name `tcp` (tcp.hpp) or `tls`.
///
/// The members that use the serving or the reading side are defined outside of the class. A library has them
/// instantiated (compiled.hpp, tls.hpp); files in compiled mode then compile nothing of either side.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/detail/local_host.hpp"
#include "tensorhub/detail/time_left.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/address.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/plain_channel.hpp"
#include "tensorhub/transports/tcp/queue.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/transports/tcp/source.hpp"
#include "tensorhub/transports/tcp/staging.hpp"
#include "tensorhub/types/reader_gate.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail {

template <typename Channel>
class basic_tcp {
  using source_type = source<Channel>;
  using endpoint_type = endpoint_core<Channel>;
  using queue_type = queue_core<Channel>;

 public:
  using concept_tag = transport_tag;
  using options = typename Channel::options;
  static constexpr std::string_view name = Channel::name;
  static constexpr transport_capabilities capabilities = Channel::capabilities;

  class memory_region {
   public:
    memory_region(memory_region&& other) noexcept
        : source_{std::exchange(other.source_, nullptr)}, id_{other.id_}, range_{other.range_} {}
    memory_region& operator=(memory_region&& other) noexcept {
      if (this != &other) {
        release();
        source_ = std::exchange(other.source_, nullptr);
        id_ = other.id_;
        range_ = other.range_;
      }
      return *this;
    }
    ~memory_region() { release(); }
    [[nodiscard]] memory_range range() const noexcept { return range_; }

   private:
    friend class basic_tcp;
    memory_region(source_type& owner, std::uint64_t id, const memory_range& range)
        : source_{&owner}, id_{id}, range_{range} {}
    void release() noexcept;
    source_type* source_;
    std::uint64_t id_;
    memory_range range_;
  };

  class endpoint {
   public:
    endpoint(endpoint&&) noexcept;
    endpoint& operator=(endpoint&&) noexcept;
    ~endpoint();
    [[nodiscard]] incarnation peer() const noexcept { return core_->peer(); }
    [[nodiscard]] bool usable() const noexcept { return core_->usable(); }
    [[nodiscard]] std::uint64_t ordered_read_bytes() const noexcept { return core_->ordered_read_bytes(); }
    [[nodiscard]] duration round_trip() const noexcept { return core_->round_trip(); }

   private:
    friend class basic_tcp;
    explicit endpoint(std::unique_ptr<endpoint_type> core);
    std::unique_ptr<endpoint_type> core_;
  };

  class queue {
   public:
    queue(queue&&) noexcept;
    queue& operator=(queue&&) noexcept;
    ~queue();
    [[nodiscard]] post_result post_read(endpoint& to, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept;
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept;
    void wait(duration timeout) noexcept;
    void wake() noexcept;
    [[nodiscard]] std::size_t outstanding() const noexcept;

   private:
    friend class basic_tcp;
    explicit queue(std::unique_ptr<queue_type> core);
    std::unique_ptr<queue_type> core_;
  };

  explicit basic_tcp(const options& settings = {}, incarnation self = {});
  ~basic_tcp();

  [[nodiscard]] transport_address address() const { return address_; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access);
  [[nodiscard]] std::uint64_t registered_bytes() const noexcept;
  [[nodiscard]] remote_region describe(const memory_region& region) const;
  void revoke(memory_region& region) noexcept;

  void cut_off(incarnation peer) noexcept;
  void admit(incarnation self);
  void rename(incarnation self, incarnation next) noexcept;
  void dismiss(incarnation self) noexcept;
  void require_capability(std::span<const std::byte> key);
  void expire_capabilities(incarnation self, std::uint64_t epoch) noexcept;
  [[nodiscard]] std::uint64_t refused_connections() const noexcept;
  [[nodiscard]] transport_shortage shortage_told() const { return source_.shortage_told(); }

  [[nodiscard]] queue make_queue(std::size_t depth);
  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self = {});

 protected:
  [[nodiscard]] const typename Channel::shared& shared() const noexcept { return shared_; }

 private:
  struct both_ends {
    incarnation reader;
    incarnation source;
  };
  static void add_stream(queue_type& on, endpoint_type& core, Channel channel,
                         std::span<device_access* const> devices);
  [[nodiscard]] Channel open_stream(const transport_address& where, both_ends who, path_kind path,
                                    const tcp_path& settings, deadline until);
  static void check_welcome(const welcome& answer, const std::string& prefix, incarnation peer);

  typename Channel::shared shared_;
  tcp_options options_;
  std::string datacenter_;  ///< label
  std::shared_ptr<staging_pool> staging_ = std::make_shared<staging_pool>();
  source_type source_;
  transport_address address_;
};

// ---- regions, endpoints, queues

template <typename Channel>
void basic_tcp<Channel>::memory_region::release() noexcept {
  if (source_ == nullptr) return;
  source_->regions().erase(id_);
  source_->forget_region(id_);
}

template <typename Channel>
basic_tcp<Channel>::endpoint::endpoint(std::unique_ptr<endpoint_type> core) : core_{std::move(core)} {}
template <typename Channel>
basic_tcp<Channel>::endpoint::endpoint(endpoint&&) noexcept = default;
template <typename Channel>
auto basic_tcp<Channel>::endpoint::operator=(endpoint&&) noexcept -> endpoint& = default;
template <typename Channel>
basic_tcp<Channel>::endpoint::~endpoint() = default;

template <typename Channel>
basic_tcp<Channel>::queue::queue(std::unique_ptr<queue_type> core) : core_{std::move(core)} {}
template <typename Channel>
basic_tcp<Channel>::queue::queue(queue&&) noexcept = default;
template <typename Channel>
auto basic_tcp<Channel>::queue::operator=(queue&&) noexcept -> queue& = default;
template <typename Channel>
basic_tcp<Channel>::queue::~queue() = default;

template <typename Channel>
post_result basic_tcp<Channel>::queue::post_read(endpoint& to, const memory_region& into,
                                                 std::uint64_t offset, const remote_slice& from,
                                                 request_id id) noexcept {
  const memory_range target = into.range();
  if (!tensorhub::detail::lies_within(target.bytes, offset, from.bytes))
    return core_->post_finished(id, completion_status::local_error);
  const remote_region& region = *from.region;
  if (region.key.used_bytes != sizeof(region_key) || !tensorhub::detail::is_sound(from))
    return core_->post_finished(id, completion_status::access_denied);
  read_request request;
  std::memcpy(&request.key, region.key.bytes.data(), sizeof request.key);
  request.offset = region.base + from.offset;
  request.bytes = from.bytes;
  device_access* const device = target.host_accessible() ? nullptr : target.device;
  return core_->post(*to.core_, {id, target.data + offset, from.bytes, device}, request);
}
template <typename Channel>
std::size_t basic_tcp<Channel>::queue::poll(std::span<completion> completions) noexcept {
  return core_->poll(completions);
}
template <typename Channel>
void basic_tcp<Channel>::queue::wait(duration timeout) noexcept {
  core_->wait(timeout);
}
template <typename Channel>
void basic_tcp<Channel>::queue::wake() noexcept {
  core_->wake();
}
template <typename Channel>
std::size_t basic_tcp<Channel>::queue::outstanding() const noexcept {
  return core_->outstanding();
}

// ---- the transport

template <typename Channel>
basic_tcp<Channel>::basic_tcp(const options& settings, incarnation self)
    : shared_{settings},
      options_{Channel::sockets_of(settings)},
      datacenter_{datacenter_label(options_.here.datacenter)},
      source_{options_, self, shared_, staging_} {
  const listening_socket& at = source_.listener();
  address_.text = make_address(
      {advertised_host(options_, at.host, name), std::to_string(at.port), datacenter_}, Channel::scheme);
}
template <typename Channel>
basic_tcp<Channel>::~basic_tcp() = default;

template <typename Channel>
auto basic_tcp<Channel>::register_memory(std::span<const memory_range> ranges, region_access access)
    -> std::vector<memory_region> {
  tensorhub::detail::check_registrable(name, ranges);
  std::vector<memory_region> regions;
  regions.reserve(ranges.size());
  for (const memory_range& range : ranges)
    regions.push_back({source_, source_.regions().insert(range, access), range});
  return regions;
}

template <typename Channel>
std::uint64_t basic_tcp<Channel>::registered_bytes() const noexcept {
  return source_.regions().bytes();
}

template <typename Channel>
remote_region basic_tcp<Channel>::describe(const memory_region& region) const {
  const region_key key = source_.regions().key_of(region.id_);
  remote_region out;
  out.bytes = region.range_.bytes;
  out.key.used_bytes = sizeof key;
  std::memcpy(out.key.bytes.data(), &key, sizeof key);
  return out;
}

template <typename Channel>
void basic_tcp<Channel>::revoke(memory_region& region) noexcept {
  source_.regions().renew(region.id_);
  source_.forget_region(region.id_);
}

template <typename Channel>
void basic_tcp<Channel>::cut_off(incarnation peer) noexcept {
  source_.cut_off(peer);
}
template <typename Channel>
void basic_tcp<Channel>::admit(incarnation self) {
  source_.admit(self);
}
template <typename Channel>
void basic_tcp<Channel>::rename(incarnation self, incarnation next) noexcept {
  source_.rename(self, next);
}
template <typename Channel>
void basic_tcp<Channel>::dismiss(incarnation self) noexcept {
  source_.dismiss(self);
}
template <typename Channel>
void basic_tcp<Channel>::require_capability(std::span<const std::byte> key) {
  source_.require_capability(key);
}
template <typename Channel>
void basic_tcp<Channel>::expire_capabilities(incarnation self, std::uint64_t epoch) noexcept {
  source_.expire_capabilities(self, epoch);
}
template <typename Channel>
std::uint64_t basic_tcp<Channel>::refused_connections() const noexcept {
  return source_.refused_connections();
}

// ---- connecting

template <typename Channel>
auto basic_tcp<Channel>::make_queue(std::size_t depth) -> queue {
  return queue{std::make_unique<queue_type>(depth, detail::bounded(options_.peer_timeout), staging_)};
}

template <typename Channel>
auto basic_tcp<Channel>::connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout, incarnation self) -> endpoint {
  if (!self) self = source_.self();
  const auto until = std::chrono::steady_clock::now() + timeout;
  const auto where = parse_address(address.text, Channel::scheme);
  const path_kind path = where ? path_to(*where, datacenter_) : path_kind::same_datacenter;
  const tcp_path settings = settings_of(options_, path);
  auto core = std::make_unique<endpoint_type>(*on.core_, peer,
                                              settings.streams > 1 ? 0 : Channel::ordered_read_bytes(path));
  on.core_->attach(*core);
  const std::vector<device_access*> devices = source_.regions().target_devices();
  const auto open = [&] { return open_stream(address, {self, peer}, path, settings, until); };
  // Each takes two round trips. Without a thread, `get` opens it.
  std::vector<std::future<Channel>> further;
  for (std::size_t i = 1; i < settings.streams; ++i)
    further.push_back(std::async(std::launch::async | std::launch::deferred, open));
  add_stream(*on.core_, *core, open(), devices);
  for (std::future<Channel>& each : further) add_stream(*on.core_, *core, each.get(), devices);
  return endpoint{std::move(core)};
}

template <typename Channel>
void basic_tcp<Channel>::add_stream(queue_type& on, endpoint_type& core, Channel channel,
                                    std::span<device_access* const> devices) {
  try {
    on.add_stream(core, std::move(channel), devices);
  } catch (const error& e) {
    throw error(errc::transport_failed,
                std::string{name} + ": no staging memory for reads into device memory: " + e.sentence());
  }
}

template <typename Channel>
Channel basic_tcp<Channel>::open_stream(const transport_address& where, both_ends who, path_kind path,
                                        const tcp_path& settings, deadline until) {
  const std::string& address = where.text;
  const std::string prefix = std::string{name} + ": " + address + " ";
  Channel channel = Channel::connect(
      shared_, connect_to(address, settings, until, name, options_.names_in_addresses), address, until);
  hello greeting;
  greeting.path =
      path == path_kind::same_datacenter && settings.streams > 1 ? path_kind::one_of_several : path;
  greeting.reader = who.reader.value;
  greeting.source = who.source.value;
  const auto binding = channel.binding();
  greeting.capability = shown_over(where.capability, binding);
  // The send buffer of a new connection is empty: the socket takes the whole message or nothing.
  if (channel.send(&greeting, sizeof greeting) != static_cast<ssize_t>(sizeof greeting))
    throw error(errc::transport_failed, prefix + "closed the connection at once");
  welcome answer;
  std::size_t have = 0;
  while (have < sizeof answer) {
    const auto taken = channel.receive(reinterpret_cast<std::byte*>(&answer) + have, sizeof answer - have);
    if (taken == 0 || (taken < 0 && errno != EAGAIN && errno != EINTR))
      throw error(errc::transport_failed, prefix + channel.why_closed());
    if (taken > 0)
      have += static_cast<std::size_t>(taken);
    else if (std::chrono::steady_clock::now() >= until || !wait_ready(channel.socket(), POLLIN, until))
      throw error(errc::timed_out, prefix + "accepted the connection and sent no welcome");
  }
  check_welcome(answer, prefix, who.source);
  const bool has_capability = where.capability.size() == capability_bytes;
  if (has_capability && !is_same(answer.proof, proof_of_source(where.capability, binding)))
    throw error(errc::transport_failed,
                prefix +
                    "does not know this reader's capability: another process than the source, or one "
                    "that stands between the two, has answered there");
  return channel;
}

template <typename Channel>
void basic_tcp<Channel>::check_welcome(const welcome& answer, const std::string& prefix, incarnation peer) {
  const auto refuse = [&](const std::string& why) { throw error(errc::transport_failed, prefix + why); };
  if (answer.magic != welcome_magic) refuse("is not a TensorHub data port");
  if (answer.status == welcome_status::needs_tls)
    refuse("encrypts its data connections: use transport tls here as well");
  if (answer.status == welcome_status::crowded)
    refuse("takes no more connections of this worker: raise its option max_connections_per_reader");
  if (const std::string why = detail::why_refused(answer, data_protocol, peer); !why.empty()) refuse(why);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::tcp_detail
