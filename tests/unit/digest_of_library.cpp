#include <vector>

#include "tensorhub/types/xxh3.hpp"

namespace unit {
void library_digest(const std::vector<std::byte>& bytes, std::uint64_t seed, std::uint64_t& low,
                    std::uint64_t& high);

void library_digest(const std::vector<std::byte>& bytes, std::uint64_t seed, std::uint64_t& low,
                    std::uint64_t& high) {
  const tensorhub::digest128 digest = tensorhub::detail::xxh3_128(bytes, seed);
  low = digest.low;
  high = digest.high;
}
}  // namespace unit
