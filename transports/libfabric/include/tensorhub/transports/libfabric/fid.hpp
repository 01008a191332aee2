#pragma once
/// \file fid.hpp
/// libfabric's objects as owners, its error numbers as text, and the text form of its addresses.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/config.hpp"
#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// The interface version that we ask for, whatever newer library is there.
inline constexpr std::uint32_t api_version = FI_VERSION(1, 17);

template <typename Fid>
struct close_fid {
  void operator()(Fid* object) const noexcept { static_cast<void>(::fi_close(&object->fid)); }
};
template <typename Fid>
using unique_fid = std::unique_ptr<Fid, close_fid<Fid>>;

struct free_info {
  void operator()(::fi_info* info) const noexcept { ::fi_freeinfo(info); }
};
using unique_info = std::unique_ptr<::fi_info, free_info>;

/// "No such file or directory (-2)" of a negative return value.
[[nodiscard]] inline std::string reason(std::int64_t result) {
  const int number = static_cast<int>(result < 0 ? -result : result);
  return std::string{::fi_strerror(number)} + " (" + std::to_string(number) + ")";
}

[[noreturn]] inline void fail(const std::string& sentence) {
  throw error(errc::transport_failed, "libfabric: " + sentence);
}

/// 64 random bits of the system's.
[[nodiscard]] inline std::uint64_t random_word() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

/// A provider's address: bytes of a format that only it knows.
struct raw_address {
  std::uint32_t format = 0;
  std::vector<std::byte> bytes{};

  /// "10.0.0.1:4711" where it is an IP address, else hexadecimal digits.
  [[nodiscard]] std::string readable() const {
    std::array<char, INET6_ADDRSTRLEN> host{};
    if (format == FI_SOCKADDR_IN && bytes.size() >= sizeof(sockaddr_in)) {
      sockaddr_in in{};
      std::memcpy(&in, bytes.data(), sizeof in);
      ::inet_ntop(AF_INET, &in.sin_addr, host.data(), host.size());
      return std::string{host.data()} + ":" + std::to_string(ntohs(in.sin_port));
    }
    if (format == FI_SOCKADDR_IN6 && bytes.size() >= sizeof(sockaddr_in6)) {
      sockaddr_in6 in{};
      std::memcpy(&in, bytes.data(), sizeof in);
      ::inet_ntop(AF_INET6, &in.sin6_addr, host.data(), host.size());
      return "[" + std::string{host.data()} + "]:" + std::to_string(ntohs(in.sin6_port));
    }
    return hexadecimal();
  }
  [[nodiscard]] std::string hexadecimal() const {
    static constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const std::byte each : bytes) {
      text += digits[std::to_integer<unsigned>(each) >> 4];
      text += digits[std::to_integer<unsigned>(each) & 15u];
    }
    return text;
  }
};

/// What `transport_address::text` says: "libfabric://<provider>/<msg or rdm>/<format>/<hexadecimal address>".
struct peer_address {
  std::string provider{};
  bool connected = true;
  raw_address raw{};

  [[nodiscard]] std::string text() const {
    return "libfabric://" + provider + (connected ? "/msg/" : "/rdm/") + std::to_string(raw.format) + "/" +
           raw.hexadecimal();
  }
  /// For sentences.
  [[nodiscard]] std::string readable() const { return raw.readable() + " (provider " + provider + ")"; }

  [[nodiscard]] static std::optional<peer_address> parsed(std::string_view text) {
    static constexpr std::string_view prefix = "libfabric://";
    if (text.size() > limits::address_bytes || !text.starts_with(prefix)) return std::nullopt;
    text.remove_prefix(prefix.size());
    const auto next = [&text]() -> std::string_view {
      const auto slash = text.find('/');
      const auto word = text.substr(0, slash);
      text.remove_prefix(slash == std::string_view::npos ? text.size() : slash + 1);
      return word;
    };
    peer_address out;
    out.provider = next();
    const std::string_view kind = next();
    const std::string_view format = next();
    const auto [end, problem] = std::from_chars(format.data(), format.data() + format.size(), out.raw.format);
    if (out.provider.empty() || (kind != "msg" && kind != "rdm") || format.empty() ||
        problem != std::errc{} || end != format.data() + format.size() || text.empty() ||
        text.size() % 2 != 0 || text.size() > 512)
      return std::nullopt;
    out.connected = kind == "msg";
    for (std::size_t i = 0; i < text.size(); i += 2) {
      std::uint8_t value = 0;
      const auto pair = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
      if (pair.ec != std::errc{} || pair.ptr != text.data() + i + 2) return std::nullopt;
      out.raw.bytes.push_back(static_cast<std::byte>(value));
    }
    if (out.raw.format == FI_SOCKADDR_IN && out.raw.bytes.size() != sizeof(sockaddr_in)) return std::nullopt;
    if (out.raw.format == FI_SOCKADDR_IN6 && out.raw.bytes.size() != sizeof(sockaddr_in6))
      return std::nullopt;
    return out;
  }
};

/// One event about a connection, with the data that the other side sent along. (fi_eq_cm_entry ends in a
/// flexible array, which C++ does not have.)
class connection_event {
 public:
  /// Bytes read, or a negative error number.
  [[nodiscard]] ssize_t read(::fid_eq* eq) noexcept {
    const auto bytes = ::fi_eq_read(eq, &kind_, raw_.data(), raw_.size(), 0);
    data_bytes_ = bytes > static_cast<ssize_t>(head_bytes) ? static_cast<std::size_t>(bytes) - head_bytes : 0;
    return bytes < 0 || bytes >= static_cast<ssize_t>(head_bytes) ? bytes : -FI_EAGAIN;
  }
  /// The error behind -FI_EAVAIL; false if there is none after all.
  [[nodiscard]] bool read_error(::fid_eq* eq, ::fi_eq_err_entry& problem) noexcept {
    problem = {};
    problem.err_data = raw_.data();
    problem.err_data_size = raw_.size();
    return ::fi_eq_readerr(eq, &problem, 0) > 0;
  }
  [[nodiscard]] std::uint32_t kind() const noexcept { return kind_; }
  [[nodiscard]] ::fid* about() const noexcept { return head<::fid*>(offsetof(::fi_eq_cm_entry, fid)); }
  /// Of a connection request; the caller's to free.
  [[nodiscard]] ::fi_info* info() const noexcept {
    return head<::fi_info*>(offsetof(::fi_eq_cm_entry, info));
  }
  [[nodiscard]] std::span<const std::byte> data() const noexcept {
    return std::span{raw_}.subspan(head_bytes, data_bytes_);
  }

 private:
  static constexpr std::size_t head_bytes = sizeof(::fi_eq_cm_entry);
  template <typename T>
  [[nodiscard]] T head(std::size_t offset) const noexcept {
    T value;
    std::memcpy(&value, raw_.data() + offset, sizeof value);
    return value;
  }
  alignas(::fi_eq_cm_entry) std::array<std::byte, head_bytes + 512> raw_{};
  std::uint32_t kind_ = 0;
  std::size_t data_bytes_ = 0;
};

}  // namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail
