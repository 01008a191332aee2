#pragma once
/// \file source_tree.hpp
/// The repository's own text, for tests that read it; and the little of C++ that they understand.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

namespace structure {

/// One file. `path` is relative to the repository's root, with '/' between its parts.
struct source_file {
  std::string path;
  std::string text;
};

/// What a checker found wrong, in sentences that begin with the path.
using complaints = std::vector<std::string>;

inline std::string to_string(const complaints& found) {
  std::string text = std::to_string(found.size()) + " complaints";
  for (const std::string& complaint : found) text += "\n  " + complaint;
  return text;
}

inline bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

inline bool is_cpp(std::string_view path) {
  return path.ends_with(".hpp") || path.ends_with(".ipp") || path.ends_with(".cpp");
}

/// Every text file of ours: the root's own files and these folders. Build folders are nobody's source.
inline std::vector<source_file> read_source_tree(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  const auto is_text = [](const fs::path& path) {
    static constexpr std::string_view endings[] = {".hpp", ".ipp",  ".cpp", ".h",  ".c",  ".txt", ".cmake",
                                                   ".md",  ".json", ".sh",  ".in", ".py", ".yml", ".supp"};
    const std::string ending = path.extension().string();
    return ending.empty() || std::find(std::begin(endings), std::end(endings), ending) != std::end(endings);
  };
  std::vector<source_file> files;
  const auto take = [&](const fs::path& path) {
    std::ifstream stream{path, std::ios::binary};
    std::string text{std::istreambuf_iterator<char>{stream}, {}};
    if (text.find('\0') != std::string::npos) return;
    files.push_back({fs::relative(path, root).generic_string(), std::move(text)});
  };
  for (const fs::directory_entry& entry : fs::directory_iterator{root}) {
    // In a second working tree, .git is a file that names the first one's folder.
    if (entry.is_regular_file() && entry.path().filename() != ".git" && is_text(entry.path()))
      take(entry.path());
  }
  for (const char* folder :
       {"include", "transports", "c", "python", "examples", "tools", "tests", "bench", "cmake", ".ci"}) {
    if (!fs::is_directory(root / folder)) continue;
    for (auto at = fs::recursive_directory_iterator{root / folder}; at != fs::recursive_directory_iterator{};
         ++at) {
      if (at->is_directory() && at->path().filename().string().starts_with("build")) {
        at.disable_recursion_pending();
      } else if (at->is_regular_file() && is_text(at->path())) {
        take(at->path());
      }
    }
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return files;
}

inline const std::vector<source_file>& source_tree() {
  static const std::vector<source_file> files = read_source_tree(TENSORHUB_SOURCE_DIR);
  return files;
}

/// Runs a checker of single files over some of the tree. `count` is how many it has seen: a test requires
/// that it is not zero.
template <typename Applies, typename Check>
complaints check_files(const std::vector<source_file>& files, const Applies& applies, const Check& check,
                       std::size_t* count = nullptr) {
  complaints all;
  for (const source_file& file : files) {
    if (!applies(file.path)) continue;
    if (count != nullptr) ++*count;
    for (std::string& complaint : check(file)) all.push_back(std::move(complaint));
  }
  return all;
}

inline std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

/// The code without comments and without what literals say; line ends stay. Knows line and block comments,
/// strings (raw ones too), characters and digit separators.
inline std::string code_only(std::string_view text) {
  std::string code;
  const auto keep_line_ends = [&code](std::string_view skipped) {
    code += ' ';
    code.append(static_cast<std::size_t>(std::count(skipped.begin(), skipped.end(), '\n')), '\n');
  };
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::size_t at = 0;
  const auto skip_to = [&](std::size_t end) {
    end = std::min(end, text.size());
    keep_line_ends(text.substr(at, end - at));
    at = end;
  };
  const auto end_after = [&](std::string_view mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == std::string_view::npos ? text.size() : found + mark.size();
  };
  while (at < text.size()) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with("//")) {
      skip_to(text.find('\n', at));
    } else if (rest.starts_with("/*")) {
      skip_to(end_after("*/", at + 2));
    } else if (rest.starts_with("R\"") && (at == 0 || !is_word(text[at - 1]))) {
      const std::size_t open = text.find('(', at);
      if (open == std::string_view::npos) return code;
      skip_to(end_after(")" + std::string{text.substr(at + 2, open - at - 2)} + "\"", open));
    } else if (rest[0] == '"' || (rest[0] == '\'' && (at == 0 || !is_word(text[at - 1])))) {
      std::size_t end = at + 1;
      while (end < text.size() && text[end] != rest[0]) end += text[end] == '\\' ? 2 : 1;
      skip_to(end + 1);
    } else {
      code += text[at++];
    }
  }
  return code;
}

/// What an #include line names, and its line's number.
struct include_line {
  std::string name;
  std::size_t line = 0;
};
inline std::vector<include_line> includes_of(std::string_view text) {
  std::vector<include_line> found;
  std::size_t number = 0;
  for (std::string_view line : lines_of(text)) {
    ++number;
    const auto skip_blanks = [&line] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip_blanks();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip_blanks();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip_blanks();
    if (line.empty() || (line[0] != '<' && line[0] != '"')) continue;
    const std::size_t end = line.find(line[0] == '<' ? '>' : '"', 1);
    if (end != std::string_view::npos) found.push_back({std::string{line.substr(1, end - 1)}, number});
  }
  return found;
}

}  // namespace structure
