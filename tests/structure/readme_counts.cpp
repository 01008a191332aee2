// The README says how many lines of the main example are TensorHub's: they are counted here.

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <sstream>
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

/// The number that is followed by these words, whatever the line breaks; zero if there is none.
std::size_t number_before(const std::string& text, const std::string& words) {
  std::istringstream in{text};
  std::string flat, word;
  while (in >> word) flat += word + " ";
  const std::size_t at = flat.find(" " + words);
  const std::size_t begin = at == std::string::npos ? at : flat.rfind(' ', at - 1);
  return begin == std::string::npos ? 0 : std::stoul(flat.substr(begin + 1));
}

}  // namespace

TEST_CASE("the README's line counts are those of the example") {
  const std::string readme = content("README.md");
  CHECK(number_before(readme, "lines of its trainer") ==
        lines_of_ours(content("examples/rl_loop/trainer.cpp")));
  CHECK(number_before(readme, "of its rollout are TensorHub's") ==
        lines_of_ours(content("examples/rl_loop/rollout.cpp")));
  CHECK(lines_of_ours("a(); // [hub]\nb();\n") == 1);
  CHECK(number_before("and 21\nof it", "of it") == 21);
  CHECK(number_before("nothing", "of it") == 0);
}
