#pragma once
/// \file incarnation_proof.ipp
/// Definitions of types/incarnation_proof.hpp.

#include "tensorhub/types/incarnation_proof.hpp"

#include <sodium.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "tensorhub/detail/random_id.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL incarnation incarnation_of(std::string_view public_key, digest128 proof) {
  std::string text{"tensorhub incarnation "};
  text.append(public_key).append(reinterpret_cast<const char*>(&proof), sizeof proof);
  std::array<unsigned char, 16> hash{};
  static_cast<void>(::crypto_generichash(hash.data(), hash.size(),
                                         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                         nullptr, 0));
  incarnation out{};
  std::memcpy(&out.value, hash.data(), sizeof out.value);
  if (!out) out.value = 1;
  return out;
}

TENSORHUB_DECL proven_incarnation new_incarnation(std::string_view public_key) {
  if (public_key.empty()) return {detail::random_id<incarnation>(), {}};
  std::array<std::uint64_t, 2> words{};
  detail::fill_random(words);
  const digest128 proof{words[0], words[1]};
  return {incarnation_of(public_key, proof), proof};
}

}  // namespace tensorhub::inline TENSORHUB_MODE
