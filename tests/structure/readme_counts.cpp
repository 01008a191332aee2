// The README says how many lines of the main example are TensorHub's: they are counted here.

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <string>

namespace {

std::string content(const std::string& path) {
  std::ifstream in{std::string{TENSORHUB_SOURCE_DIR} + "/" + path};
  return {std::istreambuf_iterator<char>{in}, {}};
}
std::size_t lines_of_ours(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find("// [hub]"); at != std::string::npos; at = text.find("// [hub]", at + 1))
    ++count;
  return count;
}

}  // namespace

TEST_CASE("the README's line counts are those of the example") {
  const std::string readme = content("README.md");
  std::smatch said;
  REQUIRE(std::regex_search(readme, said,
                            std::regex{"(\\d+)\\s+lines of its trainer and (\\d+) of its rollout"}));
  CHECK(std::stoul(said[1]) == lines_of_ours(content("examples/rl_loop/trainer.cpp")));
  CHECK(std::stoul(said[2]) == lines_of_ours(content("examples/rl_loop/rollout.cpp")));
  CHECK(lines_of_ours("a(); // [hub]\nb();\n") == 1);
}
