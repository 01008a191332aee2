/// \file main.cpp
/// Runs one fuzz target over its kept inputs, without libFuzzer, so that any compiler builds it and the
/// inputs are a test like any other: `fuzz_replay <target> <file of records>`. The last number that it prints
/// is the input that the target did not survive. (tests/fuzz/corpus.py describes and unpacks the file.)

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "../input.hpp"

// targets.inc has one line FUZZ_TARGET(name) for each target. The build renames each target's function to
// fuzz_<name>.
#define FUZZ_TARGET(name) extern "C" int fuzz_##name(const std::uint8_t*, std::size_t);
#include "targets.inc"
#undef FUZZ_TARGET

namespace {

/// Shows that a broken promise ends the replay.
int fuzz_planted(const std::uint8_t*, std::size_t bytes) {
  fuzz::require(bytes < 100, "no input of the planted target has 100 bytes");
  return 0;
}

struct target {
  std::string_view name;
  int (*run)(const std::uint8_t*, std::size_t);
};
constexpr target targets[] = {
#define FUZZ_TARGET(name) {#name, fuzz_##name},
#include "targets.inc"
#undef FUZZ_TARGET
    {"planted", fuzz_planted},
};

int fail(const char* what) {
  std::fprintf(stderr, "fuzz_replay: %s\n", what);
  return 1;
}

int replay(const target& chosen, const std::vector<std::uint8_t>& records) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < records.size(); ++count) {
    std::uint32_t length = 0;
    if (records.size() - at < sizeof length) return fail("the length of the last record is cut off");
    std::memcpy(&length, records.data() + at, sizeof length);
    at += sizeof length;
    if (records.size() - at < length) return fail("the last record is cut off");
    std::printf("%zu ", count);
    // A copy of its own, so that the address sanitizer sees a read beyond the input.
    const std::vector<std::uint8_t> input(records.data() + at, records.data() + at + length);
    if (chosen.run(input.data(), input.size()) != 0) return fail("the target has refused an input");
    at += length;
  }
  std::printf("\n%s: %zu inputs\n", chosen.name.data(), count);
  return count == 0 ? fail("the file has no input") : 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IONBF, 0);
  if (count != 3) return fail("expected: fuzz_replay <target> <file of records>");
  std::ifstream file{arguments[2], std::ios::binary};
  if (!file) return fail("the file of records cannot be read");
  const std::vector<std::uint8_t> records{std::istreambuf_iterator<char>{file}, {}};
  for (const target& each : targets)
    if (each.name == arguments[1]) return replay(each, records);
  return fail("there is no target of this name");
}
