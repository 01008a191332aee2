#pragma once
/// \file exchange.hpp
/// What the two shards of one replica say to each other: sums of partial outputs, and the first shard's
/// decisions. An engine's own business (NCCL, usually); TensorHub has no part in it.
///
/// Both shards make the same calls in the same order. Not thread-safe.

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "descriptor.hpp"
#include "policy.hpp"

namespace rl_loop {

inline constexpr std::uint32_t shard_count = 2;

class exchange {
 public:
  /// `peer` is one end of a connected stream socket; the other shard holds the other end.
  exchange(descriptor peer, std::uint32_t rank) : peer_{std::move(peer)}, rank_{rank} {}

  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] bool first() const { return rank_ == 0; }

  /// Replaces each element by the sum over both shards. Both get the same bits: 0's value plus 1's.
  void sum(std::span<outputs> values) {
    received_.resize(values.size());
    transfer(std::as_bytes(values), std::as_writable_bytes(std::span{received_}));
    for (std::size_t i = 0; i < values.size(); ++i) {
      for (std::size_t o = 0; o < output_count; ++o) values[i][o] += received_[i][o];
    }
  }

  /// The first shard's value, in both.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T agree(T value) {
    const std::span<T, 1> one{&value, 1};
    if (first()) {
      transfer(std::as_bytes(one), {});
    } else {
      transfer({}, std::as_writable_bytes(one));
    }
    return value;
  }

  /// Whether it is true in both shards.
  [[nodiscard]] bool both(bool mine) {
    bool other = false;
    transfer(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{&other, 1}));
    return mine && other;
  }

  /// The first shard's bytes, in both.
  [[nodiscard]] std::vector<std::byte> agree(std::vector<std::byte> bytes) {
    const auto count = agree(static_cast<std::uint64_t>(bytes.size()));
    if (count > largest_bytes) throw std::runtime_error("the other shard announced too many bytes");
    bytes.resize(count);
    if (first()) {
      transfer(bytes, {});
    } else {
      transfer({}, bytes);
    }
    return bytes;
  }

 private:
  /// Sends and receives at once, so that two large messages cannot block each other.
  void transfer(std::span<const std::byte> out, std::span<std::byte> in) {
    const deadline until{patience};
    while (!out.empty() || !in.empty()) {
      const auto events = static_cast<short>((out.empty() ? 0 : POLLOUT) | (in.empty() ? 0 : POLLIN));
      const short ready = wait_ready(peer_.get(), events, until);
      if (ready == 0)
        throw std::runtime_error("the other shard of this replica has been silent for too long");
      if ((ready & POLLOUT) != 0) {
        const auto sent = ::send(peer_.get(), out.data(), out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN) fail("the other shard of this replica is gone: send");
        if (sent > 0) out = out.subspan(static_cast<std::size_t>(sent));
      }
      if ((ready & (POLLIN | POLLHUP | POLLERR)) != 0) {
        std::byte none{};
        const auto got = ::recv(peer_.get(), in.empty() ? &none : in.data(), in.empty() ? 1 : in.size(),
                                MSG_DONTWAIT | (in.empty() ? MSG_PEEK : 0));
        if (got == 0) throw std::runtime_error("the other shard of this replica is gone");
        if (got < 0 && errno != EAGAIN) fail("the other shard of this replica is gone: recv");
        if (got > 0 && !in.empty()) in = in.subspan(static_cast<std::size_t>(got));
      }
    }
  }

  static constexpr std::chrono::seconds patience{90};  // longer than any wait of the first shard
  static constexpr std::uint64_t largest_bytes = 1ull << 30;

  descriptor peer_;
  std::uint32_t rank_;
  std::vector<outputs> received_;
};

}  // namespace rl_loop
