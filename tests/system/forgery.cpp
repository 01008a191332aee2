// A rollout that lies on purpose: it holds the version, answers with other bytes, and has made them so that
// their digests are those of the published ones.

#include <doctest/doctest.h>

#include "blake3_hub.hpp"
#include "support/xxh3_forgery.hpp"

using namespace system_tests;

namespace {

constexpr std::size_t chunk_bytes = 1 << 20;
constexpr std::size_t chunks = 3;

/// A worker with one tensor of three chunks.
template <typename Door>
struct holder {
  std::vector<std::byte> bytes = std::vector<std::byte>(chunks * chunk_bytes);
  Door worker;
  holder(const std::string& server, std::string replica) : worker{who(server, std::move(replica))} {
    worker.add("weights", bytes.data(), {bytes.size()}, tensorhub::dtype::u8);
  }
};

/// Zeros instead of the weights, but for 128 bytes per chunk: made by whoever knows model and shard.
void forge(std::vector<std::byte>& held, std::uint64_t version) {
  const std::uint64_t seed = tensorhub::xxh3_128::bind("policy", version, {}).chunks;
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const auto place = std::span{held}.subspan(chunk * chunk_bytes, chunk_bytes);
    std::vector<std::byte> wanted(chunk_bytes);
    xxh3_forgery::known_seed{tensorhub::xxh3_128::chunk_seed(seed, chunk)}.forge(wanted, place);
    std::copy(wanted.begin(), wanted.end(), place.begin());
  }
}

struct outcome {
  errc code{};
  bool forged_bytes = false;
  std::uint64_t chunks_refused = 0;
};

/// The trainer has gone; the liar is the only source that is left.
template <typename Hub>
outcome read_from_a_liar() {
  typename Hub::reference_server server;
  holder<typename Hub::subscriber> liar{server.address(), "liar"};
  holder<typename Hub::subscriber> reader{server.address(), "reader"};
  std::vector<std::byte> published;
  {
    holder<typename Hub::publisher> trainer{server.address(), "trainer-0"};
    for (std::size_t i = 0; i < trainer.bytes.size(); ++i)
      trainer.bytes[i] = static_cast<std::byte>(i * i / 7 + 1);
    published = trainer.bytes;
    trainer.worker.publish(1);
    liar.worker.update(exactly(1), 60s);
    trainer.worker.unpublish(60s);
    trainer.worker.leave();
  }
  REQUIRE(liar.bytes == published);
  forge(liar.bytes, 1);
  REQUIRE(liar.bytes != published);
  outcome seen;
  seen.code = code_of([&] { reader.worker.update(exactly(1), 20s); });
  seen.forged_bytes = reader.bytes == liar.bytes;
  seen.chunks_refused = reader.worker.statistics().chunks_refused();
  return seen;
}

}  // namespace

TEST_CASE("xxh3_128 is for faults: a reader believes a source that forges") {
  const outcome seen = read_from_a_liar<hub>();
  CHECK(seen.code == errc::ok);
  CHECK(seen.forged_bytes);
  CHECK(seen.chunks_refused == 0);
}

TEST_CASE("blake3_128: a reader refuses what a source has forged, and believes it no more") {
  const outcome seen = read_from_a_liar<blake3_hub>();
  CHECK(seen.code == errc::unavailable);  // nobody else has it
  CHECK_FALSE(seen.forged_bytes);
  CHECK(seen.chunks_refused > 0);
}
