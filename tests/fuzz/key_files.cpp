/// \file key_files.cpp
/// Files of keys and allow-lists: no text is read as more than it says, and what is read is written as it was
/// read.
///
/// Input: which kind of file, then how it is put together: its bytes as they are, or lines of valid keys and
/// words.

#include "tensorhub/key_files.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "input.hpp"
#include "tensorhub/error.hpp"

namespace {

using namespace tensorhub;

constexpr std::array<std::string_view, 3> keys{"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID",
                                               "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs",
                                               "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"};

/// A text of a file; half of them have the right form.
std::string text_in(fuzz::input& in) {
  static constexpr std::array<std::string_view, 20> words{
      " ",  "\n",    "models=", "replicas=", "may=", "policy-*", ",",       "read",   "evict", "none",
      "# ", " keys", "\t",      "\r\n",      "*",    "serve",    "public ", "secret", "=",     "trainer"};
  if (in.once_in(2)) return std::string{in.rest()};
  std::string out;
  while (!in.empty() && out.size() < 4096) {
    const std::size_t kind = in.below(32);
    if (kind < words.size())
      out += words[kind];
    else if (kind < 24)
      out.append(out.empty() || out.back() == '\n' ? "" : "\n").append(keys[kind % keys.size()]).append(" ");
    else if (kind < 27)
      out += keys[kind % keys.size()];
    else if (kind < 29)
      out += std::to_string(in.number());
    else
      out += in.text(8);
  }
  return out;
}

/// The words of the lines that begin with this key, lines being parted by line feeds alone.
std::vector<std::string> words_after(std::string_view text, const std::string& key) {
  std::vector<std::string> out;
  std::size_t lines = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line{text.substr(0, end)};
    text.remove_prefix(std::min(end + 1, text.size()));
    std::ranges::replace_if(
        line, [](char each) { return each == '\t' || each == '\r'; }, ' ');
    const std::size_t from = std::min(line.find_first_not_of(' '), line.size());
    if (line.compare(from, key.size(), key) != 0) continue;
    ++lines;
    for (std::size_t at = from + key.size(); at < line.size();) {
      const std::size_t stop = std::min(line.find(' ', at), line.size());
      if (stop > at) out.push_back(line.substr(at, stop - at));
      at = stop + 1;
    }
  }
  fuzz::require(lines == 1, "a key has one line, so that no line takes back what another says");
  return out;
}

/// The parts of the only word that begins with `field`; empty: there is none.
std::vector<std::string> parts_of(const std::vector<std::string>& words, std::string_view field) {
  std::vector<std::string> out;
  for (const std::string& each : words) {
    if (!each.starts_with(field)) continue;
    fuzz::require(out.empty(), "a rule is said once");
    for (std::size_t at = field.size();; ++at) {
      const std::size_t end = std::min(each.find(',', at), each.size());
      out.push_back(each.substr(at, end - at));
      if (end == each.size()) break;
      at = end;
    }
  }
  return out;
}

void check_rules(std::string_view text, const std::string& key, const client_rules& rules) {
  const std::vector<std::string> words = words_after(text, key);
  const std::vector<std::string> every{"*"};
  const auto models = parts_of(words, "models=");
  const auto replicas = parts_of(words, "replicas=");
  fuzz::require(rules.models == (models.empty() ? every : models), "the models are those of the line");
  fuzz::require(rules.replicas == (replicas.empty() ? every : replicas),
                "the replicas are those of the line");
  fuzz::require(std::ranges::find(words, "#") == words.end(), "no rule is taken from a remark");
  const auto may = parts_of(words, "may=");
  fuzz::require(rules.may.has_value() == !may.empty(), "rights are named, or not");
  for (const auto& [name, one] : {std::pair{"read", right::read},
                                  {"serve", right::serve},
                                  {"publish", right::publish},
                                  {"retain", right::retain},
                                  {"replace", right::replace},
                                  {"look", right::look},
                                  {"evict", right::evict}}) {
    const bool said = std::ranges::find(may, name) != may.end();
    if (rules.may) fuzz::require(rules.may->has(one) == said, "the rights are those of the line");
  }
  fuzz::require(client_rules_of(to_string(rules)) == rules, "rules are written as they were read");
}

void allow_list(const std::string& text) {
  bool is_counted = false;
  const client_allow_list read = key_files_detail::allow_list_in(text, "file", &is_counted);
  for (const auto& [key, rules] : read) {
    fuzz::require(is_curve_key(key), "only keys are let in");
    check_rules(text, key, rules);
  }
  const std::string written = key_files_detail::text_of(read, "file");
  fuzz::require(key_files_detail::allow_list_in(written, "file", &is_counted) == read && is_counted,
                "a list is written as it was read");
}

void key_pair(const std::string& text) {
  const curve_key_pair pair = key_files_detail::key_pair_in(text, "file");
  fuzz::require(public_key_of(pair.secret_key) == pair.public_key, "the keys of a file are a pair");
  fuzz::require(text.find("secret " + pair.secret_key) != std::string::npos, "the secret key is the file's");
}

void public_key(const std::string& text) {
  const std::string key = key_files_detail::public_key_in(text, "file");
  fuzz::require(is_curve_key(key) && text.find(key) != std::string::npos, "the public key is the file's");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  const std::size_t kind = in.below(8);
  const std::string text = text_in(in);
  try {
    if (kind == 0)
      key_pair(text);
    else if (kind == 1)
      public_key(text);
    else
      allow_list(text);
  } catch (const error& e) {
    fuzz::require(e.code() == errc::invalid_argument || e.code() == errc::limit_exceeded,
                  "a text is wrong or too long");
  }
  return 0;
}
