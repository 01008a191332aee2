#pragma once
/// \file declarations.hpp
/// Finds functions and classes in C++ text, without a compiler: how long a function is, and how many data
/// members a class has.
///
/// The text is read as tokens. Of a conditional (#if ... #else) only the first branch is read. Lambdas and
/// local classes belong to the function around them. Names are qualified by classes, not by namespaces, so
/// that a function keeps its name when its definition moves out of the class or to another file.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "source_tree.hpp"

namespace structure {

/// A function with its length in lines, or a class with the number of its data members.
struct declaration {
  std::string name;
  std::size_t line = 0;  ///< where it begins
  std::size_t size = 0;
};
struct declarations {
  std::vector<declaration> functions;
  std::vector<declaration> classes;
};

/// Code without preprocessor lines and without all but the first branch of a conditional; line ends stay.
inline std::string first_branches(std::string_view code) {
  std::string out;
  std::vector<bool> is_left_out;  // for each conditional that is open
  bool continues = false;
  for (const std::string_view line : lines_of(code)) {
    const std::size_t begin = std::min(line.find_first_not_of(" \t"), line.size());
    const std::string_view text = line.substr(begin);
    const bool is_directive = continues || text.starts_with('#');
    if (!continues && is_directive) {
      std::string_view word = text.substr(1);
      word.remove_prefix(std::min(word.find_first_not_of(" \t"), word.size()));
      if (word.starts_with("if")) is_left_out.push_back(false);
      if (word.starts_with("el") && !is_left_out.empty()) is_left_out.back() = true;
      if (word.starts_with("endif") && !is_left_out.empty()) is_left_out.pop_back();
    }
    continues = is_directive && line.ends_with('\\');
    const bool is_skipped = std::find(is_left_out.begin(), is_left_out.end(), true) != is_left_out.end();
    if (!is_directive && !is_skipped) out += line;
    out += '\n';
  }
  return out;
}

struct token {
  std::string_view text;
  std::size_t line = 0;
};

inline bool is_identifier(std::string_view text) {
  return !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) != 0 || text[0] == '_');
}

/// Words and numbers, `::`, `->`, and single characters. An operator's name is one token.
inline std::vector<token> tokens_of(std::string_view code) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::vector<token> tokens;
  std::size_t line = 1;
  for (std::size_t at = 0; at < code.size();) {
    if (code[at] == '\n') ++line;
    if (std::isspace(static_cast<unsigned char>(code[at])) != 0) {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    if (is_word(code[at])) {
      while (end < code.size() && (is_word(code[end]) || (code[end] == '\'' && end + 1 < code.size()))) ++end;
    } else if (code.substr(at, 2) == "::" || code.substr(at, 2) == "->") {
      ++end;
    }
    if (code.substr(at, end - at) == "operator") {
      // A conversion operator's type is read as further tokens.
      std::size_t to = std::min(code.find_first_not_of(" \n", end), code.size());
      if (code.substr(to, 2) == "()") {
        end = to + 2;
      } else if (to < code.size() && !is_word(code[to])) {
        while (to < code.size() && code[to] != '(') ++to;
        end = to;
      }
    }
    tokens.push_back({code.substr(at, end - at), line});
    at = end;
  }
  return tokens;
}

/// Reads tokens into declarations.
class declaration_reader {
 public:
  explicit declaration_reader(std::vector<token> tokens) : tokens_{std::move(tokens)} {}

  [[nodiscard]] declarations read() {
    while (at_ < tokens_.size()) read_scope("", nullptr);
    return std::move(found_);
  }

 private:
  /// A namespace or a class, up to its closing brace. `members` counts a class's data members.
  void read_scope(const std::string& prefix, std::size_t* members) {
    std::vector<token> head;
    while (at_ < tokens_.size()) {
      const token& next = tokens_[at_++];
      if (next.text == "}") return;
      if (next.text == ";") {
        if (members != nullptr) *members += members_in(head);
        head.clear();
      } else if (next.text == ":" && is_access(head)) {
        head.clear();
      } else if (next.text == "(") {
        head.push_back(next);
        skip("(", ")");
        head.push_back({")", next.line});
      } else if (next.text == "{") {
        read_braces(prefix, head);
      } else {
        head.push_back(next);
      }
    }
  }

  /// What an opening brace in a scope begins depends on the tokens before it.
  void read_braces(const std::string& prefix, std::vector<token>& head) {
    const std::vector<token> plain = without_brackets(head);
    const auto has = [&plain](std::string_view word) { return position(plain, word) != plain.size(); };
    if (has("namespace") || (plain.size() == 1 && plain[0].text == "extern")) {
      head.clear();
      read_scope(prefix, nullptr);
    } else if (has("=") || has("enum") || has("concept")) {
      skip("{", "}");
    } else if (!has("(") && (has("class") || has("struct") || has("union"))) {
      declaration made{prefix + class_name(plain), head.front().line, 0};
      head.clear();
      read_scope(made.name + "::", &made.size);
      found_.classes.push_back(std::move(made));
    } else if (!has("(") || is_member_initializer(plain)) {
      skip("{", "}");
      head.push_back({"}", tokens_[at_ - 1].line});
    } else {
      const std::size_t line = head.front().line;
      skip("{", "}");
      found_.functions.push_back({prefix + function_name(plain), line, tokens_[at_ - 1].line - line + 1});
      head.clear();
    }
  }

  /// Moves behind the brace or parenthesis that closes the one just read.
  void skip(std::string_view open, std::string_view close) {
    for (std::size_t depth = 1; at_ < tokens_.size() && depth > 0; ++at_) {
      if (tokens_[at_].text == open) ++depth;
      if (tokens_[at_].text == close) --depth;
    }
  }

  [[nodiscard]] static std::size_t position(const std::vector<token>& in, std::string_view word) {
    return static_cast<std::size_t>(
        std::find_if(in.begin(), in.end(), [word](const token& each) { return each.text == word; }) -
        in.begin());
  }
  [[nodiscard]] static bool is_access(const std::vector<token>& head) {
    return head.size() == 1 &&
           (head[0].text == "public" || head[0].text == "protected" || head[0].text == "private");
  }

  /// Without what stands in angle and square brackets, and without alignas(), decltype() and requires().
  [[nodiscard]] static std::vector<token> without_brackets(const std::vector<token>& head) {
    std::vector<token> out;
    std::size_t angles = 0;
    std::size_t squares = 0;
    for (std::size_t i = 0; i < head.size(); ++i) {
      const std::string_view text = head[i].text;
      const bool has_parentheses = text == "alignas" || text == "decltype" || text == "requires" ||
                                   text == "noexcept" || text == "explicit" || text == "__attribute__";
      if (text == "[") ++squares;
      if (text == "<" && i > 0 && is_identifier(head[i - 1].text)) ++angles;
      if (angles == 0 && squares == 0) {
        if (!has_parentheses) out.push_back(head[i]);
        if (has_parentheses && i + 1 < head.size() && head[i + 1].text == "(") i += 2;
      }
      if (text == "]" && squares > 0) --squares;
      if (text == ">" && angles > 0) --angles;
    }
    return out;
  }

  /// `name(...) : member_` and the like: the brace holds a member's first value.
  [[nodiscard]] static bool is_member_initializer(const std::vector<token>& plain) {
    const std::size_t parenthesis = position(plain, ")");
    for (std::size_t i = parenthesis; i < plain.size(); ++i)
      if (plain[i].text == ":") return is_identifier(plain.back().text);
    return false;
  }

  [[nodiscard]] static std::string class_name(const std::vector<token>& plain) {
    std::string name = "(unnamed)";
    for (std::size_t i = 0; i < plain.size() && plain[i].text != ":"; ++i) {
      const std::string text{plain[i].text};
      if (!is_identifier(text) || text == "class" || text == "struct" || text == "union" ||
          text == "template" || text == "final")
        continue;
      name = i > 0 && plain[i - 1].text == "::" ? name + "::" + text : text;
    }
    return name;
  }
  [[nodiscard]] static std::string function_name(const std::vector<token>& plain) {
    std::size_t begin = position(plain, "(");
    if (begin == 0) return "(unnamed)";
    std::string name{plain[--begin].text};
    if (begin > 0 && plain[begin - 1].text == "~") name = "~" + name, --begin;
    while (begin > 1 && plain[begin - 1].text == "::" && is_identifier(plain[begin - 2].text)) {
      name = std::string{plain[begin - 2].text} + "::" + name;
      begin -= 2;
    }
    return name;
  }

  /// How many data members a statement of a class declares. What is static is no part of an object.
  [[nodiscard]] static std::size_t members_in(const std::vector<token>& head) {
    std::vector<token> plain = without_brackets(head);
    if (plain.empty()) return 0;
    for (const std::string_view word : {"using", "typedef", "friend", "static", "static_assert", "template",
                                        "enum", "class", "struct", "union", "operator"})
      if (position(plain, word) != plain.size()) return 0;
    const std::size_t value = std::min(position(plain, "="), position(plain, "}"));
    const std::size_t parenthesis = position(plain, "(");
    const bool points_to_function = parenthesis + 2 < plain.size() && plain[parenthesis + 2].text == "(";
    if (parenthesis < value && !points_to_function) return 0;
    std::size_t count = 1;
    for (std::size_t i = 0, depth = 0; i < plain.size(); ++i) {
      if (plain[i].text == "(") ++depth;
      if (plain[i].text == ")") --depth;
      if (plain[i].text == "," && depth == 0) ++count;
    }
    return count;
  }

  std::vector<token> tokens_;
  std::size_t at_ = 0;
  declarations found_;
};

inline declarations declarations_of(std::string_view text) {
  const std::string code = first_branches(code_only(text));
  return declaration_reader{tokens_of(code)}.read();
}

}  // namespace structure
