#pragma once
/// \file capability_checks.hpp
/// What a transport that asks for capabilities must do; the same for all.

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <tensorhub/concepts/guarded_transport.hpp>
#include <tensorhub/types/capability.hpp>
#include <vector>

namespace capability_checks {

using namespace tensorhub;
using namespace std::chrono_literals;

inline constexpr incarnation source_id{10};
inline constexpr incarnation reader_id{20};
inline constexpr incarnation stranger_id{30};

/// A reader with its queue and 64 bytes to read into.
template <typename T>
struct reading {
  reading(incarnation self, typename T::options how = {})
      : through{std::move(how), self}, on{through.make_queue(4)} {
    const memory_range range{reinterpret_cast<std::byte*>(into.data()), into.size()};
    target = through.register_memory(std::span{&range, 1}, region_access::local_write);
  }

  /// Why it is not let in; empty: it is.
  [[nodiscard]] std::string refusal(const transport_address& where, incarnation peer = source_id) {
    try {
      const auto made = through.connect(on, where, peer, 5s);
      return {};
    } catch (const error& e) {
      CHECK(e.code() == errc::transport_failed);
      return e.what();
    }
  }
  [[nodiscard]] bool reads(typename T::endpoint& from, const remote_region& region,
                           const std::string& expected) {
    into.fill(0);
    const remote_slice all{&region, 0, region.bytes};
    if (on.post_read(from, target.front(), 0, all, 1) != post_result::posted) return false;
    std::array<completion, 1> done{};
    const auto until = std::chrono::steady_clock::now() + 10s;
    while (on.poll(done) == 0) {
      if (std::chrono::steady_clock::now() > until) return false;
      on.wait(10ms);
    }
    return done[0].status == completion_status::ok &&
           std::memcmp(into.data(), expected.data(), expected.size()) == 0;
  }

  T through;
  std::array<char, 64> into{};
  typename T::queue on;
  std::vector<typename T::memory_region> target;
};

template <typename T>
void check_guard(const typename T::options& how = {}) {
  static_assert(guarded_transport<T>);
  T source{how, source_id};
  T other_source{how, {11}};
  std::string text(64, 'w');
  const memory_range range{reinterpret_cast<std::byte*>(text.data()), text.size()};
  const auto regions = source.register_memory(std::span{&range, 1}, region_access::remote_read);
  const remote_region region = source.describe(regions.front());
  const std::string key = random_capability_key();
  const std::string other_key = random_capability_key();
  source.require_capability(std::as_bytes(std::span{key}));
  other_source.require_capability(std::as_bytes(std::span{other_key}));

  const auto with = [&](std::string capability) {
    return transport_address{source.address().text, std::move(capability)};
  };
  const std::string good = make_capability(key, reader_id, source_id, 1);
  reading<T> reader{reader_id, how};
  auto present = reader.through.connect(reader.on, with(good), source_id, 5s);
  REQUIRE(reader.reads(present, region, text));
  CHECK(source.refused_connections() == 0);

  reading<T> stranger{stranger_id, how};
  CHECK(stranger.refusal(with({})).find("capability") != std::string::npos);
  CHECK(!stranger.refusal(with(good)).empty());  // another reader's
  CHECK(!stranger.refusal(with(make_capability(other_key, stranger_id, {11}, 1))).empty());
  CHECK(!stranger.refusal(with(std::string(capability_bytes, '\0'))).empty());
  CHECK(!stranger.refusal(with(std::string(capability_bytes, 'x'))).empty());
  CHECK(!stranger.refusal(with(std::string(1000, 'x'))).empty());
  CHECK(source.refused_connections() >= 6);
  const transport_address elsewhere{other_source.address().text, good};
  CHECK(!reader.refusal(elsewhere, {11}).empty());  // for another source
  CHECK(other_source.refused_connections() >= 1);

  source.expire_capabilities(source_id, 5);
  source.expire_capabilities(source_id, 3);  // what has expired stays so
  source.expire_capabilities({12}, 9);       // nobody here
  CHECK(reader.refusal(with(good)).find("taken back") != std::string::npos);
  CHECK(!reader.refusal(with(make_capability(key, reader_id, source_id, 4))).empty());
  CHECK(reader.refusal(with(make_capability(key, reader_id, source_id, 5))).empty());
  CHECK(reader.refusal(with(make_capability(key, reader_id, source_id, 6))).empty());

  CHECK(reader.reads(present, region, text));  // has not noticed
  CHECK(stranger.refusal(with(make_capability(key, stranger_id, source_id, 6))).empty());
  source.cut_off(stranger_id);  // whatever it shows
  CHECK(!stranger.refusal(with(make_capability(key, stranger_id, source_id, 6))).empty());
  CHECK(reader.reads(present, region, text));
}

}  // namespace capability_checks
