#pragma once
/// \file messages.hpp
/// JSON of the control channel.

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tensorhub/types/memory.hpp>

#include "channel.hpp"
#include "environment.hpp"

namespace transport_bench {

using json = nlohmann::ordered_json;

[[nodiscard]] inline json to_json(const facts& values) {
  json out = json::object();
  for (const auto& [name, value] : values) out[name] = value;
  return out;
}

/// A member that is text; empty if there is none. Never throws.
[[nodiscard]] inline std::string text_of(const json& message, const char* name) {
  const auto at = message.is_object() ? message.find(name) : message.end();
  return at != message.end() && at->is_string() ? at->get<std::string>() : std::string{};
}

/// The next message, if it is of this type. A "refused" of the other side becomes its sentence.
[[nodiscard]] inline json receive_message(channel& control, std::string_view type, channel::deadline until) {
  const json message = json::parse(control.receive(until), nullptr, false);
  if (text_of(message, "type") == "gave_up")
    throw reader_gave_up(control.peer() + " gave up: " + text_of(message, "sentence"));
  if (text_of(message, "type") == "refused")
    throw channel_error(control.peer() + " refused: " + text_of(message, "sentence"));
  if (text_of(message, "type") != type)
    throw channel_error(control.peer() + " sent something else than '" + std::string{type} + "'");
  return message;
}

[[nodiscard]] inline json to_json(const tensorhub::remote_region& region) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string key;
  for (const std::byte b : region.key.view()) {
    key += digits[std::to_integer<unsigned>(b) >> 4];
    key += digits[std::to_integer<unsigned>(b) & 15u];
  }
  return {{"base", region.base}, {"bytes", region.bytes}, {"key", key}};
}

/// Throws nlohmann::json::exception or channel_error.
[[nodiscard]] inline tensorhub::remote_region region_from(const json& value) {
  tensorhub::remote_region out;
  out.base = value.at("base").get<std::uint64_t>();
  out.bytes = value.at("bytes").get<std::uint64_t>();
  const auto key = value.at("key").get<std::string>();
  const auto digit = [](char c) -> unsigned {
    if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a') + 10;
    throw channel_error("the other side sent a damaged key");
  };
  if (key.size() % 2 != 0 || key.size() / 2 > out.key.bytes.size())
    throw channel_error("the other side sent a key of a wrong length");
  for (std::size_t i = 0; i < key.size() / 2; ++i)
    out.key.bytes[i] = static_cast<std::byte>(digit(key[2 * i]) << 4 | digit(key[2 * i + 1]));
  out.key.used_bytes = static_cast<std::uint8_t>(key.size() / 2);
  return out;
}

}  // namespace transport_bench
