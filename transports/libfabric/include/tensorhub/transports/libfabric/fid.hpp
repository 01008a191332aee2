#pragma once
/// \file fid.hpp
/// Owners of libfabric's objects, its error numbers as text, and the text form of its addresses.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::transports::libfabric_detail {

/// The interface version that the transport requests, also from a newer library.
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
[[nodiscard]] std::string reason(std::int64_t result);

[[noreturn]] void fail(const std::string& sentence);

/// A provider's address: bytes in a format that only the provider knows.
struct raw_address {
  std::uint32_t format = 0;
  std::vector<std::byte> bytes{};

  /// "10.0.0.1:4711" for an IP address, otherwise hexadecimal digits.
  [[nodiscard]] std::string readable() const;
  [[nodiscard]] std::string hexadecimal() const;

  /// False: these bytes are no address of the provider that has given this one. Providers get a pointer
  /// without a length: they read as many bytes as an address has, or up to a zero, of whatever comes.
  [[nodiscard]] bool has_form_of(std::span<const std::byte> other) const noexcept;
};

/// The same port at this host (a numeric address; empty: `own`), as peers are to be told of an endpoint that
/// listens at all addresses. Throws `invalid_argument` if the host is of another family.
[[nodiscard]] raw_address advertised(raw_address own, const std::string& host);

/// The content of `transport_address::text`: "libfabric://<provider>/<msg or rdm>/<format>/<hexadecimal
/// address>".
struct peer_address {
  std::string provider{};
  bool connected = true;
  raw_address raw{};

  [[nodiscard]] std::string text() const;
  /// For error sentences.
  [[nodiscard]] std::string readable() const { return raw.readable() + " (provider " + provider + ")"; }

  [[nodiscard]] static std::optional<peer_address> parsed(std::string_view text);
};

/// One event about a connection, with the data that the other side attached. (fi_eq_cm_entry ends in a
/// flexible array, which C++ does not have.)
class connection_event {
 public:
  /// Returns the bytes read, or a negative error number.
  [[nodiscard]] ssize_t read(::fid_eq* eq) noexcept;
  /// Reads the error that -FI_EAVAIL announced; false if there is none.
  [[nodiscard]] bool read_error(::fid_eq* eq, ::fi_eq_err_entry& problem) noexcept;
  [[nodiscard]] std::uint32_t kind() const noexcept { return kind_; }
  [[nodiscard]] ::fid* endpoint() const noexcept { return head<::fid*>(offsetof(::fi_eq_cm_entry, fid)); }
  /// The entry of a connection request; the caller frees it.
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

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transports/libfabric/impl/fid.ipp"
#endif
