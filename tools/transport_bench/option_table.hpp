#pragma once
/// \file option_table.hpp
/// The options of a transport by name: `--set io_threads=4` sets the member of its options struct.

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "parse.hpp"

namespace transport_bench {

/// What the user has set, by name.
using option_values = std::map<std::string, std::string>;

struct option_help {
  std::string name{};
  std::string value{};  ///< what may be written, with the default
  std::string meaning{};
};

template <typename Options>
class option_table {
 public:
  template <typename Member>
  option_table& field(const std::string& name, Member Options::*member, const std::string& meaning) {
    rows_.push_back({{name, describe(Options{}.*member), meaning},
                     [=](Options& into, const std::string& text) { assign(into.*member, text, name); }});
    return *this;
  }
  template <typename Member>
  option_table& choice(const std::string& name, Member Options::*member,
                       const std::vector<std::pair<std::string, Member>>& choices,
                       const std::string& meaning) {
    std::string names;
    std::string usual;
    for (const auto& [word, value] : choices) {
      names += (names.empty() ? "" : "|") + word;
      if (Options{}.*member == value) usual = word;
    }
    rows_.push_back(
        {{name, names + " (" + usual + ")", meaning}, [=](Options& into, const std::string& text) {
           for (const auto& [word, value] : choices) {
             if (word != text) continue;
             into.*member = value;
             return;
           }
           throw usage_error("option " + name + ": '" + text + "' is none of " + names);
         }});
    return *this;
  }

  [[nodiscard]] std::vector<option_help> help() const {
    std::vector<option_help> out;
    for (const auto& row : rows_) out.push_back(row.help);
    return out;
  }
  /// The defaults, then what `prepare` changes, then what the user has set. Names that are not in the table
  /// are for somebody else and passed over: the command line has checked them.
  template <typename Prepare>
  [[nodiscard]] Options make(const option_values& values, Prepare prepare) const {
    Options out;
    prepare(out);
    for (const auto& row : rows_) {
      if (const auto given = values.find(row.help.name); given != values.end()) row.set(out, given->second);
    }
    return out;
  }

 private:
  struct table_row {
    option_help help;
    std::function<void(Options&, const std::string&)> set;
  };

  static std::string describe(const std::string& value) {
    return value.empty() ? "text" : "text (" + value + ")";
  }
  static std::string describe(const std::vector<std::string>&) { return "text,text,..."; }
  static std::string describe(bool value) { return value ? "on|off (on)" : "on|off (off)"; }
  static std::string describe(std::chrono::milliseconds value) {
    return "time (" + std::to_string(value.count()) + "ms)";
  }
  template <std::integral Number>
  static std::string describe(Number value) {
    return "number (" + (value < 0 ? std::to_string(value) : size_text(static_cast<std::uint64_t>(value))) +
           ")";
  }

  static void assign(std::string& into, const std::string& text, const std::string&) { into = text; }
  static void assign(std::vector<std::string>& into, const std::string& text, const std::string&) {
    into = split(text, ',');
  }
  static void assign(bool& into, const std::string& text, const std::string& name) {
    if (text != "on" && text != "off") throw usage_error("option " + name + ": write on or off");
    into = text == "on";
  }
  static void assign(std::chrono::milliseconds& into, const std::string& text, const std::string& name) {
    into = std::chrono::milliseconds{
        static_cast<std::int64_t>(parse_seconds(text, 0.001, 86400, "option " + name) * 1000)};
  }
  template <std::integral Number>
  static void assign(Number& into, const std::string& text, const std::string& name) {
    if (std::signed_integral<Number> && text == "-1") {
      into = static_cast<Number>(-1);
      return;
    }
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<Number>::max());
    into = static_cast<Number>(parse_size(text, 0, most, "option " + name));
  }

  std::vector<table_row> rows_;
};

}  // namespace transport_bench
