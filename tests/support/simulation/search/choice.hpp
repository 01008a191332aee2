#pragma once
/// \file choice.hpp
/// One step of a small world (small_world.hpp), and its text: "c0" is a call of worker 0, "u0" and "d0" are
/// the next message from it and to it, "r0.1" a read of its source 1, "w0" its overdue timer, "t" the next
/// tick; "l0" loses the messages of its connection, "k0" kills it, "p0" stops it, "g0" lets it go on, and "s"
/// replaces the server.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE::testing {

struct choice {
  enum class kind_type : char {
    call = 'c',
    up = 'u',
    down = 'd',
    read = 'r',
    wake = 'w',
    tick = 't',
    lose = 'l',
    kill = 'k',
    pause = 'p',
    resume = 'g',
    replace_server = 's'
  };
  kind_type kind = kind_type::tick;
  std::uint8_t worker = 0;
  std::uint8_t source = 0;
};

[[nodiscard]] inline std::string to_string(choice each) {
  std::string out{static_cast<char>(each.kind)};
  if (each.kind == choice::kind_type::tick || each.kind == choice::kind_type::replace_server) return out;
  out += std::to_string(each.worker);
  if (each.kind == choice::kind_type::read) out += "." + std::to_string(each.source);
  return out;
}
[[nodiscard]] inline std::string to_string(const std::vector<choice>& steps) {
  std::string out;
  for (const choice each : steps) out += (out.empty() ? "" : " ") + to_string(each);
  return out;
}

/// The steps of a printed history.
[[nodiscard]] inline std::vector<choice> choices_of(std::string_view text) {
  std::vector<choice> out;
  std::uint8_t* number = nullptr;
  for (const char each : text) {
    if (each >= '0' && each <= '9' && number != nullptr) {
      *number = static_cast<std::uint8_t>(*number * 10 + (each - '0'));
    } else if (each == '.') {
      number = out.empty() ? nullptr : &out.back().source;
    } else if (each != ' ') {
      out.push_back({static_cast<choice::kind_type>(each), 0, 0});
      number = &out.back().worker;
    }
  }
  return out;
}

}  // namespace tensorhub::inline TENSORHUB_MODE::testing
