/// \file files.cpp
/// Rules about single files: heads of headers, widths of lines, paths of machines, unfinished work, names.
/// Each checker is shown a bad text that it must find.

#include <doctest/doctest.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

#include "layers.hpp"
#include "source_tree.hpp"

using namespace structure;

namespace {

complaints check_head(const source_file& file) {
  complaints found;
  if (!file.text.starts_with("#pragma once\n"))
    found.push_back(file.path + " does not start with #pragma once");
  const std::string name = file.path.substr(file.path.rfind('/') + 1);
  const std::string head = "/// \\file " + name + "\n/// ";
  if (file.text.find(head) == std::string::npos)
    found.push_back(file.path + " has no comment \"\\file " + name + "\" that says what it is for");
  return found;
}

/// Complaints about each line that has one of the words. The words are put together here, so that this file
/// does not contain them.
template <std::size_t N>
complaints check_words(const source_file& file, const std::array<std::string, N>& words, const char* why) {
  complaints found;
  std::size_t number = 0;
  for (const std::string_view line : lines_of(file.text)) {
    ++number;
    for (const std::string& word : words) {
      if (line.find(word) != std::string_view::npos)
        found.push_back(file.path + ":" + std::to_string(number) + " has \"" + word + "\": " + why);
    }
  }
  return found;
}

constexpr const char* no_machine = "no file of ours knows a machine";

complaints check_machine_paths(const source_file& file) {
  const std::string slash = "/";
  const char* const why = no_machine;
  complaints found = check_words(file,
                                 std::array{slash + "work" + slash, slash + "home" + slash,
                                            slash + "root" + slash, slash + "Users" + slash},
                                 why);
  if (!file.path.starts_with("tests/")) {
    for (std::string& complaint : check_words(file, std::array{slash + "tmp" + slash}, why))
      found.push_back(std::move(complaint));
  }
  return found;
}

/// Homes can have any root: whoever runs this looks for a folder of that name, and for the home itself.
complaints check_user(const source_file& file, const std::string& name, const std::string& home) {
  complaints found = check_words(file, std::array{"/" + name + "/"}, no_machine);
  const bool is_of_one_user = std::ranges::count(home, '/') >= 2;
  if (is_of_one_user && found.empty()) found = check_words(file, std::array{home}, no_machine);
  return found;
}

complaints check_this_user(const source_file& file) {
  const passwd* const user = ::getpwuid(::getuid());
  if (user == nullptr) return {};
  const std::string folder = "/" + std::string{user->pw_name} + "/";
  const auto& tree = source_tree();
  const bool is_ours = std::ranges::any_of(
      tree, [&](const source_file& each) { return ("/" + each.path).find(folder) != std::string::npos; });
  return is_ours ? complaints{} : check_user(file, user->pw_name, user->pw_dir);
}

complaints check_unfinished(const source_file& file) {
  return check_words(file,
                     std::array{std::string{"TO"} + "DO", std::string{"FIX"} + "ME", std::string{"XX"} + "X",
                                std::string{"HA"} + "CK"},
                     "finish it, or say what is missing");
}

complaints check_line_length(const source_file& file) {
  complaints found;
  std::size_t number = 0;
  for (const std::string_view line : lines_of(file.text)) {
    ++number;
    // Characters, not bytes: continuation bytes of UTF-8 do not count.
    const auto columns = std::count_if(line.begin(), line.end(),
                                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
    if (columns > 110)
      found.push_back(file.path + ":" + std::to_string(number) + " is wider than 110 columns");
  }
  return found;
}

/// A header may name concepts and types of std::ranges, and must not call its algorithms.
complaints check_algorithms(const source_file& file) {
  complaints found;
  const std::string code = code_only(file.text);
  const std::string_view prefix = "std::ranges::";
  for (auto at = code.find(prefix); at != std::string::npos; at = code.find(prefix, at)) {
    at += prefix.size();
    const std::string name = code.substr(at, code.find_first_not_of("abcdefghijklmnopqrstuvwxyz_", at) - at);
    if (code[at + name.size()] == '(' && name != "size" && name != "data")
      found.push_back(file.path + " calls std::ranges::" + name +
                      ": take detail/whole_range.hpp or <algorithm>, which a user's compiler reads faster");
  }
  return found;
}

/// What the literals of a line say, each followed by a line end.
std::string literals_of(std::string_view line) {
  std::string out;
  bool is_in_literal = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (!is_in_literal && line.substr(i).starts_with("//")) break;
    if (!is_in_literal && starts_with_any(line.substr(i), {"'\"'", "'\\\"'"})) {
      i = line.find('\'', i + 1);
    } else if (line[i] == '"') {
      is_in_literal = !is_in_literal;
      if (!is_in_literal) out += '\n';
    } else if (is_in_literal) {
      out += line[i];
      if (line[i] == '\\' && i + 1 < line.size()) out += line[++i];
    }
  }
  return out;
}

/// Users of Python and C read the library's sentences, too: in them an option has its plain name. (Those of
/// etcd are read in C++ alone.)
complaints check_sentences(const source_file& file) {
  complaints found;
  if (file.path.find("/etcd") != std::string::npos) return found;
  std::size_t number = 0;
  for (const std::string_view line : lines_of(file.text)) {
    ++number;
    if (line.starts_with("#include")) continue;
    const std::string said = literals_of(line);
    for (const std::string_view mark : {"options::", "security::", "_options."}) {
      for (auto at = said.find(mark); at != std::string::npos; at = said.find(mark, at + 1)) {
        found.push_back(file.path + ":" + std::to_string(number) + " names an option as C++ does: \"" +
                        std::string{mark} + "...\"");
      }
    }
  }
  return found;
}

bool speaks_to_users(std::string_view path) {
  const bool is_beside_the_library = starts_with_any(path, {"c/impl/", "python/binding/", "tools/"});
  return is_library_file(path) || (is_cpp(path) && is_beside_the_library);
}

/// Words of DESIGN's list of names, where the word alone is wrong whatever it is used for. (Others, such as
/// `buffer` or `epoch`, are wrong for one meaning only; a reader has to see that.)
complaints check_names(const source_file& file) {
  struct forbidden_word {
    std::string_view word;
    std::string_view instead;
  };
  static constexpr std::array<forbidden_word, 5> forbidden{{{"src", "source"},
                                                            {"dst", "target"},
                                                            {"dest", "target"},
                                                            {"plugin", "policy"},
                                                            {"strategy", "policy"}}};
  // Fields of libfabric's fi_info and libibverbs' ibv_qp_attr, and a function of librdmacm.
  static constexpr std::array<std::string_view, 7> of_others{
      "rdma_get_src_port", "src_addrlen", "src_addr",          "dest_addrlen",
      "dest_addr",         "dest_qp_num", "max_dest_rd_atomic"};
  complaints found;
  std::size_t number = 0;
  std::string code = code_only(file.text);
  for (const std::string_view word : of_others) {
    for (auto at = code.find(word); at != std::string::npos; at = code.find(word, at))
      code.replace(at, word.size(), word.size(), '_');
  }
  for (const std::string_view line : lines_of(code)) {
    ++number;
    if (line.find("#include") != std::string_view::npos) continue;
    // Parts of identifiers: `src_bytes` has the parts `src` and `bytes`.
    std::size_t at = 0;
    while (at < line.size()) {
      std::size_t end = at;
      while (end < line.size() && std::isalnum(static_cast<unsigned char>(line[end])) != 0) ++end;
      for (const forbidden_word& name : forbidden) {
        if (line.substr(at, end - at) == name.word) {
          found.push_back(file.path + ":" + std::to_string(number) + " uses \"" + std::string{name.word} +
                          "\" in a name: say " + std::string{name.instead});
        }
      }
      at = end + 1;
    }
  }
  return found;
}

void nothing_is_found(bool (*applies)(std::string_view), complaints (*check)(const source_file&)) {
  std::size_t count = 0;
  const complaints found = check_files(source_tree(), applies, check, &count);
  REQUIRE(count > 30);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

bool every_file(std::string_view) {
  return true;
}

}  // namespace

TEST_CASE("lines are at most 110 columns wide") {
  nothing_is_found(is_cpp, check_line_length);
}
TEST_CASE("every file of the library says what it is") {
  nothing_is_found(is_library_file, check_head);
}
TEST_CASE("no file knows a machine") {
  nothing_is_found(every_file, check_machine_paths);
  nothing_is_found(every_file, check_this_user);
}
TEST_CASE("nothing is left unfinished") {
  nothing_is_found(is_cpp, check_unfinished);
}
TEST_CASE("no header makes its users wait for an algorithm of std::ranges") {
  nothing_is_found(is_library_file, check_algorithms);
}
TEST_CASE("sentences name options plainly") {
  nothing_is_found(speaks_to_users, check_sentences);
}
TEST_CASE("names are the design's") {
  nothing_is_found(is_cpp, check_names);
}

TEST_CASE("the checkers of single files find planted faults") {
  CHECK(check_line_length({"a.hpp", std::string(110, 'a') + "\n"}).empty());
  CHECK(check_line_length({"a.hpp", "\n" + std::string(111, 'a')}).size() == 1);

  const std::string head = "#pragma once\n/// \\file a.hpp\n/// What it is for.\n";
  CHECK(check_head({"include/tensorhub/a.hpp", head}).empty());
  CHECK(check_head({"include/tensorhub/b.hpp", head}).size() == 1);
  CHECK(check_head({"include/tensorhub/service/impl/a.ipp", head}).size() == 1);
  CHECK(check_head({"include/tensorhub/a.hpp", "\n" + head}).size() == 1);
  CHECK(check_head({"include/tensorhub/a.hpp", "#ifndef A\n#define A\n#endif\n"}).size() == 2);

  const std::string slash = "/";
  CHECK(check_machine_paths({"tests/a.cpp", "\"" + slash + "work" + slash + "b\""}).size() == 1);
  CHECK(check_machine_paths({"README.md", "cd " + slash + "home" + slash + "me"}).size() == 1);
  CHECK(check_machine_paths({"bench/a.cpp", "\"" + slash + "tmp" + slash + "b\""}).size() == 1);
  CHECK(check_machine_paths({"tests/a.cpp", "\"" + slash + "tmp" + slash + "b\""}).empty());

  CHECK(check_machine_paths({"README.md", "cd " + slash + "Users" + slash + "me"}).size() == 1);
  const auto faults_of_ann = [](const std::string& text) {
    return check_user({"README.md", text}, "ann", "/space/ann").size();
  };
  CHECK(faults_of_ann("cd /srv/export/ann/x") == 1);
  CHECK(faults_of_ann("HOME=/space/ann") == 1);
  CHECK(faults_of_ann("can plan, and annul; a/ann.txt") == 0);
  CHECK(check_user({"README.md", "#!/usr/bin/env"}, "daemon", "/usr").empty());

  CHECK(check_algorithms({"a.hpp", "f(std::ranges::size(a)); std::ranges::sort(a); std::ranges::find(a, 1);"})
            .size() == 2);
  CHECK(check_algorithms({"a.hpp", "/// std::ranges::sort(a)\ntemplate <std::ranges::range R> void f(R);"})
            .empty());

  CHECK(check_sentences({"a.hpp", "fail(\"set worker_options::security\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "fail(a + \"set \" + name + \"; raise options::most\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "f(\"a\", &options::a, \"b\");  // \"options::a\"\n/// `options::a`"})
            .empty());
  CHECK(check_sentences({"a.hpp", "set(&options::a, \"options::a, or options::b\");"}).size() == 2);
  CHECK(check_sentences({"a.hpp", "fail(\"tcp://a: see options::address\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "fail(\"say \\\"a: set options::address\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "fail('\"' + name + '\"' + \": set options::a\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "fail(\"raise worker_options.lanes\");"}).size() == 1);
  CHECK(check_sentences({"a.hpp", "#include \"tensorhub/types/transport_options.hpp\""}).empty());

  CHECK(check_unfinished({"a.cpp", std::string{"int a;  // TO"} + "DO: b\n"}).size() == 1);
  CHECK(check_unfinished({"a.cpp", std::string{"int a;  // FIX"} + "ME\n"}).size() == 1);
}

TEST_CASE("the checker of names finds parts of identifiers, but not words in comments and literals") {
  const auto faults = [](std::string text) { return check_names({"a.hpp", std::move(text)}).size(); };
  CHECK(faults("void copy(char* dst, const char* src);") == 2);
  CHECK(faults("std::size_t src_bytes = my_dst_;") == 2);
  CHECK(faults("struct plugin {};\nenum class strategy {};") == 2);
  CHECK(faults("int srcs, dstance; // src\n/* dst */ auto a = \"src\"; auto b = R\"x(dst)\" src)x\";") == 0);
  CHECK(faults("int n = 1'000; char c = 's'; char d = '\\''; int src;") == 1);
  CHECK(faults("#include \"src/a.hpp\"\nint a;") == 0);
}

TEST_CASE("code_only keeps code and line numbers, and drops the rest") {
  CHECK(code_only("a // b\nc") == "a  \nc");
  CHECK(code_only("a /* b\n\n */ c") == "a  \n\n c");
  CHECK(code_only("f(\"x\\\"y\", 'z')") == "f( ,  )");
  CHECK(code_only("1'000'000") == "1'000'000");
}
