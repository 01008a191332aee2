#pragma once
/// \file incarnation_proof.hpp
/// Binds incarnations to keys: under security an incarnation is a hash of its worker's public key and of a
/// secret number, its proof, which the worker shows to a server when it joins. No other key can join as it,
/// at this server or at the next one; nobody has to remember whose it is.
///
/// The hash is the first 8 bytes of libsodium's BLAKE2b-128 over the key and the proof: to find a proof for
/// another key takes about 2^64 hashes.
///
/// Thread safety: any thread may call the functions. Throws `system_failed` if the system has no random
/// numbers.

#include <string_view>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/digest.hpp"
#include "tensorhub/types/ids.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

struct proven_incarnation {
  incarnation id{};
  digest128 proof{};  ///< zero without security
};

/// A new one, of a worker with this public key; empty: any number.
[[nodiscard]] TENSORHUB_DECL proven_incarnation new_incarnation(std::string_view public_key);

/// The incarnation that this key and this proof make; never zero.
[[nodiscard]] TENSORHUB_DECL incarnation incarnation_of(std::string_view public_key, digest128 proof);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/incarnation_proof.ipp"
#endif
