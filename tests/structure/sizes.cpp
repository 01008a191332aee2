/// \file sizes.cpp
/// No function is longer than 60 lines, and no class has more than 20 data members. What was larger when the
/// rule came is in the tables below: it may shrink, and it leaves the table when it keeps the limit.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "declarations.hpp"
#include "source_tree.hpp"

using namespace structure;

namespace {

/// Sizes by name.
using size_table = std::map<std::string, std::size_t, std::less<>>;

constexpr std::size_t most_lines = 60;
constexpr std::size_t most_members = 20;

const size_table known_functions{
    {"load_cuda_functions", 83},
    {"bench/cuda_transport.cpp: main", 64},
    {"bench/same_host_transport.cpp: main", 79},
    {"bench/tcp_transport.cpp: main", 85},
    {"bench/update.cpp: main", 72},
    {"bench/visible.cpp: main", 66},
    {"tests/conformance/tls_bad_input.cpp: TEST_CASE", 63},
    {"tests/fuzz/server.cpp: scene::step", 70},
    {"tests/system/prometheus.cpp: TEST_CASE", 62},
    {"tests/unit/catalog_recovery.cpp: TEST_CASE", 63},
    {"tests/unit/codec_round_trip.cpp: TEST_CASE", 267},
    {"tests/unit/etcd_election.cpp: TEST_CASE", 63},
    {"tests/unit/session_recovery.cpp: TEST_CASE", 65},
    {"tools/transport_bench/command_line.cpp: make_options", 188},
    {"tools/transport_bench/report.cpp: write_json", 62},
    {"tools/transport_bench/source_session.cpp: serve_reader", 62},
    {"tools/transport_bench/transport_run.hpp: reader_of::run_lane", 75},
};

const size_table known_classes{
    {"catalog_statistics", 26},
    {"catalog_server::loop", 24},
    {"control_connection::loop", 24},
    {"cuda_functions", 47},
    {"worker_statistics", 23},
    {"tests/chaos/round.hpp: round", 21},
    {"tests/support/simulation/options.hpp: simulation_options", 33},
    {"tests/support/simulation/options.hpp: simulation_statistics", 27},
    {"tests/support/simulation/worker.hpp: simulated_worker", 30},
    {"tests/support/simulation/world.hpp: simulation", 31},
    {"tools/transport_bench/settings.hpp: settings", 25},
    {"transports/libfabric: source", 27},
    {"transports/same_host: link", 25},
    {"transports/tcp: stream", 24},
};

/// Definitions of the core move between its files: they are named without one.
std::string place_of_name(std::string_view path) {
  if (path.starts_with("include/")) return "";
  if (path.starts_with("transports/")) return std::string{path.substr(0, path.find('/', 11))} + ": ";
  return std::string{path} + ": ";
}

/// What is larger than `limit` and not in the table, or larger than the table says; and lines of the table
/// that are no longer needed. Of equal names the largest counts.
complaints check_sizes(const std::vector<source_file>& files, std::vector<declaration> declarations::*kind,
                       const char* what, std::size_t limit, const size_table& known,
                       std::size_t* count = nullptr) {
  complaints found;
  size_table largest;
  for (const source_file& file : files) {
    if (!is_cpp(file.path)) continue;
    const declarations all = declarations_of(file.text);
    if (count != nullptr) *count += (all.*kind).size();
    for (const declaration& each : all.*kind) {
      if (each.size <= limit) continue;
      const std::string name = place_of_name(file.path) + each.name;
      largest[name] = std::max(largest[name], each.size);
      const auto allowed = known.find(name);
      const std::size_t most = allowed == known.end() ? limit : allowed->second;
      if (each.size > most)
        found.push_back(file.path + ":" + std::to_string(each.line) + ": " + each.name + " has " +
                        std::to_string(each.size) + " " + what + ": expected at most " +
                        std::to_string(most) + "; divide it");
    }
  }
  for (const auto& [name, size] : known) {
    if (!largest.contains(name))
      found.push_back("\"" + name + "\" keeps the limit or is gone: take it out of the table");
  }
  return found;
}

complaints check_functions(const std::vector<source_file>& files, const size_table& known) {
  return check_sizes(files, &declarations::functions, "lines", most_lines, known);
}
complaints check_classes(const std::vector<source_file>& files, const size_table& known) {
  return check_sizes(files, &declarations::classes, "data members", most_members, known);
}

std::string lines(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += "  ++a;\n";
  return text;
}
/// With its first and its last line.
std::string function(const std::string& head, std::size_t length) {
  return head + " {\n" + lines(length - 2) + "}\n";
}
std::string members(std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += "  int a" + std::to_string(i) + " = 0;\n";
  return text;
}
std::string structure_of(const std::string& more, std::size_t count) {
  return "struct s {\n" + more + members(count) + "};\n";
}

}  // namespace

TEST_CASE("functions are short") {
  std::size_t count = 0;
  const complaints found =
      check_sizes(source_tree(), &declarations::functions, "lines", most_lines, known_functions, &count);
  REQUIRE(count > 3000);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("classes have few data members") {
  std::size_t count = 0;
  const complaints found =
      check_sizes(source_tree(), &declarations::classes, "data members", most_members, known_classes, &count);
  REQUIRE(count > 500);
  CHECK_MESSAGE(found.empty(), to_string(found));
}

TEST_CASE("the checker of functions finds long ones, however they begin") {
  const auto faults = [](const std::string& text) {
    return check_functions({{"tests/a.cpp", text}}, {}).size();
  };
  for (const std::string head :
       {"void f(int a = 0)", "int a::f() const noexcept", "TEST_CASE(\"f\")",
        "static auto f(int a) -> std::vector<int>", "extern \"C\" int f(int, char**)",
        "x::x(int a) : x_{a}, y_(a), z_<int>{a}", "x::~x()", "bool operator==(const a& b)",
        "int operator()(int a)", "template <typename T> requires(sizeof(T) > 1) int f(T a)",
        "[[nodiscard]] std::map<int, void (*)(int)> f(int (&a)[3], std::array<int, 3> b = {1, 2, 3})",
        "operator bool() const", "template <auto A = 1> decltype(auto) f()"}) {
    CAPTURE(head);
    CHECK(faults(function(head, most_lines)) == 0);
    CHECK(faults(function(head, most_lines + 1)) == 1);
    CHECK(faults("namespace b::c {\n" + function(head, most_lines + 1) + "}\n") == 1);
    CHECK(faults("class d : public e<f> {\n int g{1};\n public:\n" + function(head, most_lines + 1) +
                 "};\n") == 1);
  }
  const std::string body = function("void f()", most_lines + 1);
  CHECK(faults(body + body) == 2);
  CHECK(faults("#if A\n" + body + "#else\n" + body + "#endif\n") == 1);
  CHECK(faults("int a[] = {\n" + lines(100) + "};\n") == 0);
  CHECK(faults("/* { */ char a = '{'; const char* b = \"{\";\n" + function("void f()", most_lines + 1)) == 1);
  CHECK(faults("class a {\n" + function("void f()", most_lines) + function("void g()", most_lines) +
               "};\n") == 0);
}

TEST_CASE("the checker of classes counts data members and nothing else") {
  const auto faults = [](const std::string& text) {
    return check_classes({{"tests/a.cpp", text}}, {}).size();
  };
  CHECK(faults(structure_of("", most_members)) == 0);
  CHECK(faults(structure_of("", most_members + 1)) == 1);
  for (const std::string one_more :
       {"int b;", "const std::map<int, std::vector<int>>& b;", "std::function<void(int, int)> b{};",
        "int b[3] = {1, 2, 3};", "alignas(64) std::atomic<int> b{0};", "[[maybe_unused]] unsigned b : 3;",
        "struct { int c; } b;", "std::array<int, (1 << 3)> b;", "mutable std::mutex b;",
        "int (*b)(int) = nullptr;", "int f() { return 1; } int b;", "private: int b;",
        "std::function<int(int)> b = [](int c) { return c; };"}) {
    CAPTURE(one_more);
    CHECK(faults(structure_of(one_more + "\n", most_members)) == 1);
  }
  CHECK(faults(structure_of("int b, c = 1;\n", most_members - 1)) == 1);
  for (const std::string none :
       {"void f(int a, int b);", "static constexpr int b = 0;", "using b = int;", "friend class b;",
        "enum class b { c, d };", "struct b { int c; };", "s& operator=(const s&) = delete;",
        "explicit s(int a) : a0{a} { f(); }", "class b;", "int f() const { int a; int b; return a + b; }",
        "template <typename T> void f(T a);", "public:", "static_assert(sizeof(int) == 4);",
        "bool operator==(const s&) const = default;", "typedef int b;"}) {
    CAPTURE(none);
    CHECK(faults(structure_of(none + "\n", most_members)) == 0);
  }
  CHECK(faults("class outer {\n" + structure_of("", most_members + 1) + members(most_members + 1) + "};\n") ==
        2);
  CHECK(faults("enum class e {\n" + members(30) + "};\n") == 0);
}

TEST_CASE("an exception may shrink, may not grow, and leaves the table when it is not needed") {
  const auto tree = [](std::size_t length) {
    return std::vector<source_file>{
        {"include/tensorhub/a.hpp", "class a {\n" + function("void f()", length) + "};\n"}};
  };
  const size_table known{{"a::f", 80}};
  CHECK(check_functions(tree(80), known).empty());
  CHECK(check_functions(tree(70), known).empty());
  CHECK(check_functions(tree(81), known).size() == 1);
  CHECK(check_functions(tree(most_lines), known).size() == 1);
  CHECK(check_functions({{"include/tensorhub/impl/a.ipp", function("void a::f()", 80)}}, known).empty());
  CHECK(check_functions({{"tests/a.cpp", function("void a::f()", 80)}}, known).size() == 2);
  CHECK(check_functions({{"tests/a.cpp", function("void a::f()", 80)}}, {{"tests/a.cpp: a::f", 80}}).empty());
}

TEST_CASE("names of declarations are qualified by classes") {
  const declarations found = declarations_of(
      "namespace n {\ntemplate <typename T> class outer final : base<T> {\n struct inner { int a; void f() "
      "{} };\n ~outer() {}"
      "\n};\ntemplate <typename T> void outer<T>::inner::g(int a) {}\n}");
  REQUIRE(found.functions.size() == 3);
  CHECK(found.functions[0].name == "outer::inner::f");
  CHECK(found.functions[1].name == "outer::~outer");
  CHECK(found.functions[2].name == "outer::inner::g");
  REQUIRE(found.classes.size() == 2);
  CHECK(found.classes[0].name == "outer::inner");
  CHECK(found.classes[0].size == 1);
  CHECK(found.classes[1].name == "outer");
}
