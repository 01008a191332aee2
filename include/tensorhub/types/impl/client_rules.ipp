#pragma once
/// \file client_rules.ipp
/// Definitions of types/client_rules.hpp.

#include <algorithm>
#include <array>
#include <utility>

#include "tensorhub/detail/split_list.hpp"
#include "tensorhub/detail/whole_range.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/client_rules.hpp"
#include "tensorhub/types/replica_name.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

namespace client_rules_detail {
inline constexpr std::array<std::pair<std::string_view, right>, 7> names{{{"read", right::read},
                                                                          {"serve", right::serve},
                                                                          {"publish", right::publish},
                                                                          {"retain", right::retain},
                                                                          {"replace", right::replace},
                                                                          {"look", right::look},
                                                                          {"evict", right::evict}}};

[[nodiscard]] inline bool fits_any(const std::vector<std::string>& patterns, std::string_view name) noexcept {
  return detail::any_of(patterns, [name](const std::string& each) { return fits(each, name); });
}

/// Removes the first word from `text`; empty: there is none.
[[nodiscard]] inline std::string_view take_word(std::string_view& text) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\r"), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(" \t\n\r"));
  text.remove_prefix(word.size());
  return word;
}

[[nodiscard]] inline std::vector<std::string> patterns_in(std::string_view list) {
  std::vector<std::string> out = detail::split_list(std::string{list});
  for (const std::string& each : out) {
    if (each.empty() || detail::count(each, '*') > 1)
      throw error(errc::invalid_argument,
                  "'" + each + "' is no pattern: it is a name in which one '*' may stand for any characters");
  }
  return out;
}
[[nodiscard]] inline rights rights_in(std::string_view list) {
  if (const auto out = rights_named(list)) return *out;
  throw error(errc::invalid_argument,
              "'may=" + std::string{list.substr(0, 64)} +
                  "' has a word that is no right: take read, serve, publish, retain, replace, look, evict");
}

inline void put_patterns(std::string& out, std::string_view field, const std::vector<std::string>& patterns) {
  if (patterns == client_rules{}.models) return;
  out.append(out.empty() ? "" : " ").append(field);
  for (std::size_t i = 0; i < patterns.size(); ++i) out.append(i == 0 ? "" : ",").append(patterns[i]);
}
}  // namespace client_rules_detail

TENSORHUB_DECL std::string to_string(rights some) {
  std::string out;
  for (const auto& [name, one] : client_rules_detail::names) {
    if (some.has(one)) out.append(out.empty() ? "" : ",").append(name);
  }
  return out.empty() ? "none" : out;
}

TENSORHUB_DECL std::optional<rights> rights_named(std::string_view names) {
  rights out;
  if (names == "none") return out;
  while (true) {
    const std::size_t end = names.find(',');
    const auto found = detail::find(client_rules_detail::names, names.substr(0, end),
                                    &std::pair<std::string_view, right>::first);
    if (found == client_rules_detail::names.end()) return std::nullopt;
    out = out | found->second;
    if (end == std::string_view::npos) return out;
    names.remove_prefix(end + 1);
  }
}

TENSORHUB_DECL bool fits(std::string_view pattern, std::string_view name) noexcept {
  const std::size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  const std::string_view begin = pattern.substr(0, star);
  const std::string_view end = pattern.substr(star + 1);
  return name.size() >= begin.size() + end.size() && name.starts_with(begin) && name.ends_with(end);
}

TENSORHUB_DECL bool client_rules::may_speak_of(std::string_view model) const noexcept {
  return client_rules_detail::fits_any(models, model);
}
TENSORHUB_DECL bool client_rules::may_be(std::string_view replica) const noexcept {
  do {
    if (client_rules_detail::fits_any(replicas, replica)) return true;
    replica = whole_of(replica);
  } while (!replica.empty());
  return false;
}

TENSORHUB_DECL std::string to_string(const client_rules& rules) {
  std::string out = rules.name;
  client_rules_detail::put_patterns(out, "models=", rules.models);
  client_rules_detail::put_patterns(out, "replicas=", rules.replicas);
  if (rules.may) out.append(out.empty() ? "" : " ").append("may=").append(to_string(*rules.may));
  return out;
}

TENSORHUB_DECL client_rules client_rules_of(std::string_view text) {
  using namespace client_rules_detail;
  client_rules out;
  std::vector<std::string_view> said;
  for (auto word = take_word(text); !word.empty(); word = take_word(text)) {
    const std::size_t at = word.find('=');
    const std::string_view field = word.substr(0, at);
    if (word == "#")
      throw error(errc::invalid_argument,
                  "a comment ('#') cannot follow an entry: put it on a line of its own");
    if (at != std::string_view::npos && detail::contains(said, field))
      throw error(errc::invalid_argument,
                  "'" + std::string{field.substr(0, 64)} + "=' is there twice: name all with commas between");
    if (at != std::string_view::npos) said.push_back(field);
    if (at == std::string_view::npos)
      out.name.append(out.name.empty() ? "" : " ").append(word);
    else if (field == "models")
      out.models = patterns_in(word.substr(at + 1));
    else if (field == "replicas")
      out.replicas = patterns_in(word.substr(at + 1));
    else if (field == "may")
      out.may = rights_in(word.substr(at + 1));
    else
      throw error(errc::invalid_argument, "'" + std::string{field.substr(0, 64)} +
                                              "=' is no rule: there are models=, replicas= and may=");
  }
  if (out.name.size() > limits::client_name_bytes)
    throw error(errc::limit_exceeded,
                "a name has at most " + std::to_string(limits::client_name_bytes) + " bytes");
  return out;
}

TENSORHUB_DECL const client_rules& client_rules::everything() {
  static const client_rules rules = [] {
    client_rules out;
    out.may = rights::all();
    return out;
  }();
  return rules;
}

}  // namespace tensorhub::inline TENSORHUB_MODE
