#pragma once
/// \file address.hpp
/// Addresses and keys of `first_of`: those of all its members, side by side.
///
/// An address is text: "first_of/1 " and then fields, each written as its length, a colon and its bytes:
/// machine, datacenter, and for every member that listens its index in the list and its own address. A key is
/// an 8-byte checksum of what follows (so that damage is seen in every part, not only in the one that is
/// used; it guards against accidents, the members' keys against forgery), and a run of entries {member index:
/// 1 byte, key bytes: 1 byte, base: 8 bytes, key}. Both come from peers: nothing here trusts a length.
///
/// Thread safety: values and functions.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/memory.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

/// What an address says.
struct place {
  struct member {
    std::size_t index = 0;
    std::string address{};
    bool operator==(const member&) const = default;
  };
  std::string machine{};
  std::string datacenter{};
  std::vector<member> members{};
  bool operator==(const place&) const = default;

  [[nodiscard]] const std::string* address_of(std::size_t index) const noexcept;
};

inline constexpr std::string_view address_prefix = "first_of/1 ";

void append_field(std::string& text, std::string_view field);

[[nodiscard]] std::string encode(const place& where);

/// A number of at most four digits; nothing else.
[[nodiscard]] std::optional<std::size_t> small_number(std::string_view text) noexcept;

[[nodiscard]] std::optional<std::string_view> take_field(std::string_view& text) noexcept;

/// Nothing: not an address of `first_of`, or a damaged one.
[[nodiscard]] std::optional<place> decode(std::string_view text, std::size_t member_count);

inline constexpr std::size_t key_check_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t key_entry_bytes = 2 + sizeof(std::uint64_t);

/// Of the entries of a key: a multiply-and-rotate sum over words of 8 bytes.
[[nodiscard]] std::uint64_t key_checksum(std::span<const std::byte> entries) noexcept;

/// The key of a region, from its members' descriptions in turn.
class key_writer {
 public:
  /// False: no room.
  [[nodiscard]] bool append(std::size_t index, const remote_region& member) noexcept;
  [[nodiscard]] remote_key finish() noexcept;

 private:
  remote_key key_{};
  std::size_t used_ = key_check_bytes;
};

/// Byte for byte, and quickly: this is asked for every read.
[[nodiscard]] bool same_description(const remote_region& a, const remote_region& b) noexcept;

/// A member's own description of `whole`; false: there is none, or the key is damaged.
[[nodiscard]] bool find_key(const remote_region& whole, std::size_t index, remote_region& out) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/first_of/impl/address.ipp"
#endif
