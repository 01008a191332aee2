#pragma once
/// \file bare_libfabric.hpp
/// The loop to compare the libfabric transport with: one connected endpoint, fi_read, no keys that change, no
/// peers that vanish, no regions in parts.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <tensorhub/transports/libfabric.hpp>
#include <thread>
#include <vector>

namespace bench {

namespace fabric = tensorhub::transports::libfabric_detail;

inline void need(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(std::string{"bare libfabric: "} + what);
}

struct bare_queue {
  fabric::unique_fid<::fid_eq> events;
  fabric::unique_fid<::fid_cq> completions;
  explicit bare_queue(const fabric::provider& through) {
    ::fi_eq_attr of_events{};
    of_events.wait_obj = FI_WAIT_UNSPEC;
    ::fid_eq* eq = nullptr;
    need(::fi_eq_open(through.fabric(), &of_events, &eq, nullptr) == 0, "no event queue");
    events.reset(eq);
    ::fi_cq_attr of_completions{};
    of_completions.size = 256;
    of_completions.format = FI_CQ_FORMAT_CONTEXT;
    of_completions.wait_obj = FI_WAIT_UNSPEC;
    ::fid_cq* cq = nullptr;
    need(::fi_cq_open(through.domain(), &of_completions, &cq, nullptr) == 0, "no completion queue");
    completions.reset(cq);
  }
  void bind(::fid_ep* endpoint) const {
    need(::fi_ep_bind(endpoint, &events->fid, 0) == 0, "no bind");
    need(::fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV) == 0, "no bind");
    need(::fi_enable(endpoint) == 0, "not enabled");
  }
};

/// Serves one range to one reader.
class bare_fabric_source {
 public:
  static constexpr std::uint64_t key = 4711;
  explicit bare_fabric_source(const tensorhub::memory_range& range) : through_{{}}, queue_{through_} {
    ::fid_mr* memory = nullptr;
    need(::fi_mr_reg(through_.domain(), range.data, range.bytes, FI_REMOTE_READ, 0, key, 0, &memory,
                     nullptr) == 0,
         "not registered");
    memory_.reset(memory);
    ::fid_pep* listener = nullptr;
    need(::fi_passive_ep(through_.fabric(), through_.listening_info(), &listener, nullptr) == 0,
         "no listener");
    listener_.reset(listener);
    need(::fi_pep_bind(listener, &queue_.events->fid, 0) == 0 && ::fi_listen(listener) == 0, "not listening");
    address_ = through_.address_of(*listener).hexadecimal();
    thread_ = std::jthread{[this] { run(); }};
  }
  ~bare_fabric_source() { stopping_ = true; }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void run() {
    fabric::connection_event event;
    while (!stopping_ && !(event.read(queue_.events.get()) >= 0 && event.kind() == FI_CONNREQ))
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    if (stopping_) return;
    const fabric::unique_info request{event.info()};
    ::fid_ep* endpoint = nullptr;
    need(::fi_endpoint(through_.domain(), request.get(), &endpoint, nullptr) == 0, "no endpoint");
    endpoint_.reset(endpoint);
    queue_.bind(endpoint);
    need(::fi_accept(endpoint, nullptr, 0) == 0, "not accepted");
    ::fi_cq_entry done{};
    while (!stopping_) {
      static_cast<void>(::fi_cq_sread(queue_.completions.get(), &done, 1, nullptr, 100));
      static_cast<void>(event.read(queue_.events.get()));
    }
  }
  fabric::provider through_;
  bare_queue queue_;
  fabric::unique_fid<::fid_mr> memory_;
  fabric::unique_fid<::fid_pep> listener_;
  fabric::unique_fid<::fid_ep> endpoint_;
  std::string address_;
  std::atomic<bool> stopping_ = false;
  std::jthread thread_;
};

class bare_fabric_reader {
 public:
  explicit bare_fabric_reader(const std::string& address) : through_{{}}, queue_{through_} {
    const auto to =
        fabric::peer_address::parsed("libfabric://tcp/msg/" + std::to_string(FI_SOCKADDR_IN) + "/" + address);
    need(to.has_value(), "no address");
    const fabric::unique_info info{::fi_dupinfo(through_.own_info())};
    ::free(info->dest_addr);
    info->dest_addrlen = to->raw.bytes.size();
    info->dest_addr = ::malloc(info->dest_addrlen);
    std::memcpy(info->dest_addr, to->raw.bytes.data(), info->dest_addrlen);
    ::fid_ep* endpoint = nullptr;
    need(::fi_endpoint(through_.domain(), info.get(), &endpoint, nullptr) == 0, "no endpoint");
    endpoint_.reset(endpoint);
    queue_.bind(endpoint);
    need(::fi_connect(endpoint, info->dest_addr, nullptr, 0) == 0, "no connection");
    fabric::connection_event event;
    for (int i = 0; i < 5000 && !(event.read(queue_.events.get()) >= 0 && event.kind() == FI_CONNECTED); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    need(event.kind() == FI_CONNECTED, "not connected");
  }
  /// `depth` reads of `piece_bytes` in flight; sleeps in fi_cq_sread, or asks again and again.
  void read(std::byte* into, std::uint64_t bytes, std::uint64_t piece_bytes, std::size_t depth, bool sleeps) {
    std::vector<::fi_context2> contexts(bytes / piece_bytes + 1);
    std::uint64_t asked = 0;
    std::size_t in_flight = 0;
    std::uint64_t done_pieces = 0;
    const std::uint64_t pieces = (bytes + piece_bytes - 1) / piece_bytes;
    while (done_pieces < pieces) {
      while (asked < bytes && in_flight < depth) {
        const std::uint64_t length = std::min(piece_bytes, bytes - asked);
        const auto posted = ::fi_read(endpoint_.get(), into + asked, length, nullptr, FI_ADDR_UNSPEC, asked,
                                      bare_fabric_source::key, &contexts[asked / piece_bytes]);
        if (posted == -FI_EAGAIN) break;
        need(posted == 0, "fi_read failed");
        asked += length;
        ++in_flight;
      }
      ::fi_cq_entry done[16];
      auto count = ::fi_cq_read(queue_.completions.get(), done, 16);
      if (count == -FI_EAGAIN && sleeps)
        count = ::fi_cq_sread(queue_.completions.get(), done, 16, nullptr, 1000);
      if (count == -FI_EAGAIN) continue;
      need(count > 0, "a read failed");
      in_flight -= static_cast<std::size_t>(count);
      done_pieces += static_cast<std::uint64_t>(count);
    }
  }

 private:
  fabric::provider through_;
  bare_queue queue_;
  fabric::unique_fid<::fid_ep> endpoint_;
};

}  // namespace bench
