#pragma once
/// \file address.ipp
/// Encoding and parsing of addresses and keys: definitions of address.hpp.

#include <algorithm>
#include <bit>

#include "tensorhub/transfer/first_of/address.hpp"

namespace tensorhub::inline TENSORHUB_MODE::first_of_detail {

TENSORHUB_DECL const std::string* place::address_of(std::size_t index) const noexcept {
  for (const member& each : members)
    if (each.index == index) return &each.address;
  return nullptr;
}

TENSORHUB_DECL void append_field(std::string& text, std::string_view field) {
  text += std::to_string(field.size());
  text += ':';
  text += field;
}

TENSORHUB_DECL std::string encode(const place& where) {
  std::string text{address_prefix};
  append_field(text, where.machine);
  append_field(text, where.datacenter);
  for (const place::member& each : where.members) {
    append_field(text, std::to_string(each.index));
    append_field(text, each.address);
  }
  return text;
}

TENSORHUB_DECL std::optional<std::size_t> small_number(std::string_view text) noexcept {
  if (text.empty() || text.size() > 4) return std::nullopt;
  std::size_t value = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    value = value * 10 + static_cast<std::size_t>(digit - '0');
  }
  return value;
}

TENSORHUB_DECL std::optional<std::string_view> take_field(std::string_view& text) noexcept {
  const std::size_t colon = text.find(':');
  const auto bytes = small_number(text.substr(0, colon));
  if (colon == std::string_view::npos || !bytes || *bytes > text.size() - colon - 1) return std::nullopt;
  const std::string_view field = text.substr(colon + 1, *bytes);
  text.remove_prefix(colon + 1 + *bytes);
  return field;
}

TENSORHUB_DECL std::optional<place> decode(std::string_view text, std::size_t member_count) {
  if (text.size() > limits::address_bytes || !text.starts_with(address_prefix)) return std::nullopt;
  text.remove_prefix(address_prefix.size());
  const auto machine = take_field(text);
  const auto datacenter = machine ? take_field(text) : std::nullopt;
  if (!datacenter) return std::nullopt;
  place where{std::string{*machine}, std::string{*datacenter}, {}};
  while (!text.empty()) {
    const auto index_text = take_field(text);
    const auto index = index_text ? small_number(*index_text) : std::nullopt;
    const auto address = index ? take_field(text) : std::nullopt;
    if (!address || *index >= member_count || where.address_of(*index) != nullptr) return std::nullopt;
    where.members.push_back({*index, std::string{*address}});
  }
  return where;
}

TENSORHUB_DECL std::string readable_address(std::string_view text) {
  const std::optional<place> where = decode(text, most_members);
  if (!where || where->members.empty()) return std::string{text};
  std::string out;
  for (const place::member& each : where->members)
    out += (out.empty() ? "" : ", ") + readable_address(each.address);  // a member may be a composition
  return out;
}

TENSORHUB_DECL std::uint64_t key_checksum(std::span<const std::byte> entries) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15u + entries.size();
  for (std::size_t at = 0; at < entries.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, entries.data() + at, std::min(sizeof word, entries.size() - at));
    sum = std::rotl((sum ^ word) * 0xd1342543de82ef95u, 29);
  }
  return sum;
}

TENSORHUB_DECL bool key_writer::append(std::size_t index, const remote_region& member) noexcept {
  const std::size_t bytes = key_entry_bytes + member.key.used_bytes;
  if (bytes > key_.bytes.size() - used_) return false;
  std::byte* at = key_.bytes.data() + used_;
  *at++ = static_cast<std::byte>(index);
  *at++ = static_cast<std::byte>(member.key.used_bytes);
  std::memcpy(at, &member.base, sizeof member.base);
  std::memcpy(at + sizeof member.base, member.key.bytes.data(), member.key.used_bytes);
  used_ += bytes;
  return true;
}

TENSORHUB_DECL remote_key key_writer::finish() noexcept {
  key_.used_bytes = static_cast<std::uint8_t>(used_);
  const std::uint64_t sum = key_checksum(key_.view().subspan(key_check_bytes));
  std::memcpy(key_.bytes.data(), &sum, sizeof sum);
  return key_;
}

TENSORHUB_DECL bool same_description(const remote_region& a, const remote_region& b) noexcept {
  return a.base == b.base && a.bytes == b.bytes && a.key.used_bytes == b.key.used_bytes &&
         a.key.used_bytes <= a.key.bytes.size() &&
         std::memcmp(a.key.bytes.data(), b.key.bytes.data(), a.key.used_bytes) == 0;
}

TENSORHUB_DECL bool find_key(const remote_region& whole, std::size_t index, remote_region& out) noexcept {
  const std::size_t used = whole.key.used_bytes;
  if (used < key_check_bytes || used > whole.key.bytes.size()) return false;
  std::span<const std::byte> left = whole.key.view().subspan(key_check_bytes);
  std::uint64_t sum = 0;
  std::memcpy(&sum, whole.key.bytes.data(), sizeof sum);
  if (sum != key_checksum(left)) return false;
  while (left.size() >= key_entry_bytes) {
    const auto key_bytes = static_cast<std::uint8_t>(left[1]);
    if (key_bytes > left.size() - key_entry_bytes) return false;
    if (static_cast<std::size_t>(left[0]) == index) {
      std::memcpy(&out.base, left.data() + 2, sizeof out.base);
      out.base += whole.base;
      out.bytes = whole.bytes;
      out.key.used_bytes = key_bytes;
      std::memcpy(out.key.bytes.data(), left.data() + key_entry_bytes, key_bytes);
      return true;
    }
    left = left.subspan(key_entry_bytes + key_bytes);
  }
  return false;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::first_of_detail
