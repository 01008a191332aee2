#pragma once
/// \file address.hpp
/// Addresses and keys of `first_of`: those of all its members, one after the other.
///
/// An address is text: "first_of/1 " and then fields, each written as its length, a colon and its bytes. The
/// fields are machine, datacenter, and for every member that listens its index in the list and its own
/// address. A key is an 8-byte checksum of the rest, followed by entries {member index: 1 byte, key bytes: 1
/// byte, base: 8 bytes, key}. The checksum detects damage in every entry, not only in the one in use; it
/// guards against accidents, while the members' keys guard against forgery. Both addresses and keys come from
/// peers: no function here trusts a length.
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

/// The content of an address.
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

/// Parses a number of one to four digits; anything else is empty.
[[nodiscard]] std::optional<std::size_t> small_number(std::string_view text) noexcept;

[[nodiscard]] std::optional<std::string_view> take_field(std::string_view& text) noexcept;

/// A composition has no more members.
inline constexpr std::size_t most_members = 16;

/// Empty: the text is not an address of `first_of`, or it is damaged.
[[nodiscard]] std::optional<place> decode(std::string_view text, std::size_t member_count);

/// An address for sentences: of a composition those of its members ("same-host://..., tcp://10.0.0.1:4711"),
/// any other text as it is.
[[nodiscard]] std::string readable_address(std::string_view text);

inline constexpr std::size_t key_check_bytes = sizeof(std::uint64_t);
inline constexpr std::size_t key_entry_bytes = 2 + sizeof(std::uint64_t);

/// A checksum of the entries of a key: a multiply-and-rotate sum over words of 8 bytes.
[[nodiscard]] std::uint64_t key_checksum(std::span<const std::byte> entries) noexcept;

/// Builds the key of a region from the descriptions of its members, in turn.
class key_writer {
 public:
  /// Returns false if there is no room.
  [[nodiscard]] bool append(std::size_t index, const remote_region& member) noexcept;
  [[nodiscard]] remote_key finish() noexcept;

 private:
  remote_key key_{};
  std::size_t used_ = key_check_bytes;
};

/// Compares byte for byte. It is called for every read, so it must be fast.
[[nodiscard]] bool same_description(const remote_region& a, const remote_region& b) noexcept;

/// Writes a member's own description of `whole` to `out`; returns false if there is none or the key is
/// damaged.
[[nodiscard]] bool find_key(const remote_region& whole, std::size_t index, remote_region& out) noexcept;

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/transfer/first_of/impl/address.ipp"
#endif
