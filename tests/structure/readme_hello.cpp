// The README shows the essential lines of examples/hello: they are lines of these programs, in their order.

#include <doctest/doctest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace {

std::string content_of(const std::string& path) {
  std::ifstream in{std::string{TENSORHUB_SOURCE_DIR} + "/" + path};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// With one space between two words, whatever there was.
std::string words_of(const std::string& text) {
  std::istringstream in{text};
  std::string out, word;
  while (in >> word) out += word + " ";
  return out;
}

/// Lines of a block that do not follow each other in the programs that its "// <path>" lines name. Counts all
/// other lines.
std::string strangers_in(const std::string& block, std::size_t& lines) {
  std::istringstream in{block};
  std::string line, program, found;
  std::size_t at = 0;
  while (std::getline(in, line)) {
    const std::string words = words_of(line);
    if (words.starts_with("// examples/")) {
      program = words_of(content_of(words.substr(3, words.size() - 4)));
      at = 0;
      continue;
    }
    ++lines;
    const std::size_t next = program.find(words, at);
    if (next == std::string::npos)
      found += line + "\n";
    else
      at = next + words.size();
  }
  return found;
}

}  // namespace

TEST_CASE("the README's lines of examples/hello are lines of the example") {
  const std::string readme = content_of("README.md");
  const std::string fence = "```c++\n";
  const std::size_t begin = readme.find(fence);
  REQUIRE(begin != std::string::npos);
  const std::size_t first = begin + fence.size();
  std::size_t lines = 0;
  CHECK(strangers_in(readme.substr(first, readme.find("```", first) - first), lines) == "");
  CHECK(lines > 8);
}

TEST_CASE("a line that is not the example's is found, and one in the wrong order") {
  std::size_t lines = 0;
  const std::string head = "// examples/hello/trainer.cpp\n";
  CHECK(strangers_in(head + "trainer.publish(step);\ntrainer.unpublish();\n", lines) == "");
  CHECK(strangers_in(head + "trainer.unpublish();\ntrainer.publish(step);\n", lines) ==
        "trainer.publish(step);\n");
  CHECK(strangers_in(head + "trainer.push(step);\n", lines) == "trainer.push(step);\n");
  CHECK(lines == 5);
}
