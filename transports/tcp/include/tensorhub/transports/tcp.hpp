#pragma once
/// \file tcp.hpp
/// Transport `tcp`: one-sided reads over TCP, between any two machines that reach each other.
///
/// The source's memory is sent by a fixed number of I/O threads (never one per peer): copied into the socket,
/// or given to `sendfile` where the region lies in a memfd or another shared file and the reader is on
/// another machine. The reader takes the bytes out of the socket straight into their final place. What it
/// promises is concept `transport`'s table; the protocol is in tcp/protocol.hpp.
///
/// Security: a peer can read what it has the key of (128 random bits), and nothing else; keys travel through
/// the reference server. Nothing is encrypted. The default interface is loopback: set `listen_host` to serve
/// other machines, in a network you trust.
///
/// Thread safety: the transport object may be used from any thread; see concepts/transport.hpp for queues.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensorhub/concepts/transport.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/transports/tcp/options.hpp"
#include "tensorhub/transports/tcp/queue.hpp"
#include "tensorhub/transports/tcp/socket.hpp"
#include "tensorhub/transports/tcp/source.hpp"

namespace tensorhub::transports {

class tcp {
 public:
  using concept_tag = transport_tag;
  using options = tcp_options;
  static constexpr std::string_view name = "tcp";
  static constexpr transport_capabilities capabilities{.max_read_bytes = UINT64_MAX,
                                                       .max_region_bytes = UINT64_MAX,
                                                       .survives_access_errors = true,
                                                       .crosses_hosts = true,
                                                       .crosses_datacenters = true,
                                                       .reads_device_memory = false,
                                                       .uses_backing_file = true,
                                                       .sends_by_reference = true};

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
    friend class tcp;
    memory_region(tcp_detail::source& owner, std::uint64_t id, const memory_range& range)
        : source_{&owner}, id_{id}, range_{range} {}
    void release() noexcept {
      if (source_ == nullptr) return;
      source_->regions().erase(id_);
      source_->forget_region(id_);
    }
    tcp_detail::source* source_;
    std::uint64_t id_;
    memory_range range_;
  };

  class endpoint {
   public:
    [[nodiscard]] incarnation peer() const noexcept { return core_->peer(); }
    [[nodiscard]] bool usable() const noexcept { return core_->usable(); }

   private:
    friend class tcp;
    explicit endpoint(std::unique_ptr<tcp_detail::endpoint_core> core) : core_{std::move(core)} {}
    std::unique_ptr<tcp_detail::endpoint_core> core_;
  };

  class queue {
   public:
    [[nodiscard]] post_result post_read(endpoint& through, const memory_region& into, std::uint64_t offset,
                                        const remote_slice& from, request_id id) noexcept {
      const memory_range target = into.range();
      if (offset > target.bytes || from.bytes > target.bytes - offset)
        return core_->post_finished(id, completion_status::local_error);
      const remote_region& region = *from.region;
      if (region.key.used_bytes != sizeof(tcp_detail::region_key) || from.offset > region.bytes ||
          from.bytes > region.bytes - from.offset || region.base > UINT64_MAX - from.offset)
        return core_->post_finished(id, completion_status::access_denied);
      tcp_detail::read_request request;
      std::memcpy(&request.key, region.key.bytes.data(), sizeof request.key);
      request.offset = region.base + from.offset;
      request.bytes = from.bytes;
      return core_->post(*through.core_, {id, target.data + offset, from.bytes}, request);
    }
    [[nodiscard]] std::size_t poll(std::span<completion> completions) noexcept {
      return core_->poll(completions);
    }
    void wait(duration timeout) noexcept { core_->wait(timeout); }
    void wake() noexcept { core_->wake(); }
    [[nodiscard]] std::size_t outstanding() const noexcept { return core_->outstanding(); }

   private:
    friend class tcp;
    explicit queue(std::unique_ptr<tcp_detail::queue_core> core) : core_{std::move(core)} {}
    std::unique_ptr<tcp_detail::queue_core> core_;
  };

  explicit tcp(options how = {}, incarnation self = {})
      : options_{std::move(how)}, self_{self}, source_{options_, self} {
    const std::string& host =
        options_.advertised_host.empty() ? options_.listen_host : options_.advertised_host;
    const bool is_v6 = host.find(':') != std::string::npos;
    address_.text = "tcp://" + (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(source_.port());
  }

  [[nodiscard]] transport_address address() const { return address_; }

  [[nodiscard]] std::vector<memory_region> register_memory(std::span<const memory_range> ranges,
                                                           region_access access) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      if (ranges[i].data != nullptr && ranges[i].bytes > 0 && ranges[i].kind == memory_kind::host) continue;
      throw error(errc::invalid_argument, "tcp: range " + std::to_string(i) + " of " +
                                              std::to_string(ranges.size()) +
                                              " cannot be registered: it is null, empty or not host memory");
    }
    std::vector<memory_region> regions;
    regions.reserve(ranges.size());
    for (const memory_range& range : ranges)
      regions.push_back({source_, source_.regions().insert(range, access), range});
    return regions;
  }

  [[nodiscard]] std::uint64_t registered_bytes() const noexcept { return source_.regions().bytes(); }

  [[nodiscard]] remote_region describe(const memory_region& region) const {
    const tcp_detail::region_key key = source_.regions().key_of(region.id_);
    remote_region out;
    out.bytes = region.range_.bytes;
    out.key.used_bytes = sizeof key;
    std::memcpy(out.key.bytes.data(), &key, sizeof key);
    return out;
  }

  void revoke(memory_region& region) noexcept {
    source_.regions().renew(region.id_);
    source_.forget_region(region.id_);
  }

  void cut_off(incarnation peer) noexcept { source_.cut_off(peer); }

  [[nodiscard]] queue make_queue(std::size_t depth) {
    return queue{std::make_unique<tcp_detail::queue_core>(depth, options_.peer_timeout)};
  }

  [[nodiscard]] endpoint connect(queue& on, const transport_address& address, incarnation peer,
                                 duration timeout) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    auto core = std::make_unique<tcp_detail::endpoint_core>(*on.core_, peer);
    on.core_->attach(*core);
    const std::size_t streams = options_.streams == 0 ? 1 : options_.streams;
    for (std::size_t i = 0; i < streams; ++i)
      on.core_->add_stream(*core, open_stream(address.text, peer, until));
    return endpoint{std::move(core)};
  }

 private:
  [[nodiscard]] detail::unique_fd open_stream(const std::string& address, incarnation peer,
                                              tcp_detail::deadline until) const {
    detail::unique_fd socket = tcp_detail::connect_to(address, options_, until);
    tcp_detail::hello greeting;
    greeting.reader = self_.value;
    greeting.source = peer.value;
    // The send buffer of a new connection is empty: this is taken whole or not at all.
    if (::send(socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) !=
        static_cast<ssize_t>(sizeof greeting))
      throw error(errc::transport_failed, "tcp: " + address + " closed the connection at once");
    tcp_detail::welcome answer;
    std::size_t have = 0;
    while (have < sizeof answer) {
      if (!tcp_detail::wait_ready(socket.get(), POLLIN, until)) {
        throw error(errc::timed_out, "tcp: " + address + " accepted the connection and said nothing");
      }
      const auto taken = ::recv(socket.get(), reinterpret_cast<std::byte*>(&answer) + have,
                                sizeof answer - have, MSG_DONTWAIT);
      if (taken == 0 || (taken < 0 && errno != EAGAIN && errno != EINTR)) {
        throw error(errc::transport_failed, "tcp: " + address + " closed the connection instead of greeting");
      }
      if (taken > 0) have += static_cast<std::size_t>(taken);
    }
    check_welcome(answer, address, peer);
    return socket;
  }

  static void check_welcome(const tcp_detail::welcome& answer, const std::string& address, incarnation peer) {
    const auto refuse = [&](const std::string& why) {
      throw error(errc::transport_failed, "tcp: " + address + " " + why);
    };
    if (answer.magic != tcp_detail::welcome_magic) refuse("is no TensorHub data port");
    switch (answer.status) {
      case tcp_detail::welcome_status::accepted:
        if (answer.source != peer.value) refuse("is another process than the one that was expected there");
        return;
      case tcp_detail::welcome_status::other_protocol:
        return refuse("speaks data protocol " + std::to_string(answer.protocol) + ", this process speaks " +
                      std::to_string(tcp_detail::data_protocol));
      case tcp_detail::welcome_status::other_process:
        return refuse("is another process (incarnation " + to_hex(incarnation{answer.source}) +
                      ") than the one that was expected there (" + to_hex(peer) + ")");
      case tcp_detail::welcome_status::refused:
        return refuse("has cut this process off: it was declared dead");
    }
    refuse("answered with an unknown status");
  }

  options options_;
  incarnation self_;
  tcp_detail::source source_;
  transport_address address_;
};
static_assert(transport<tcp>);

}  // namespace tensorhub::transports
