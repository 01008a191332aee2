#pragma once
/// \file tensor.hpp
/// A tensor as the library knows it: name, element type, shape and size, but never values.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

/// Element types, named as in safetensors and DLPack. The numbers are part of the control protocol: append,
/// never renumber.
enum class dtype : std::uint8_t {
  u8 = 0,
  i8 = 1,
  i16 = 2,
  u16 = 3,
  f16 = 4,
  bf16 = 5,
  i32 = 6,
  u32 = 7,
  f32 = 8,
  i64 = 9,
  u64 = 10,
  f64 = 11,
  boolean = 12,
  f8_e4m3 = 13,
  f8_e5m2 = 14,
  f8_e8m0 = 15,  ///< scales of the MX formats
  f8_e4m3fnuz = 16,
  f8_e5m2fnuz = 17,
  f4_e2m1_x2 = 18,  ///< two values in a byte; shapes count bytes
  c64 = 19,         ///< two f32
  c128 = 20
};

[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept {
  switch (type) {
    case dtype::u8:
    case dtype::i8:
    case dtype::boolean:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2:
    case dtype::f8_e8m0:
    case dtype::f8_e4m3fnuz:
    case dtype::f8_e5m2fnuz:
    case dtype::f4_e2m1_x2:
      return 1;
    case dtype::i16:
    case dtype::u16:
    case dtype::f16:
    case dtype::bf16:
      return 2;
    case dtype::i32:
    case dtype::u32:
    case dtype::f32:
      return 4;
    case dtype::i64:
    case dtype::u64:
    case dtype::f64:
    case dtype::c64:
      return 8;
    case dtype::c128:
      return 16;
  }
  return 0;
}

[[nodiscard]] std::string_view to_string(dtype type) noexcept;

/// The description of one tensor of a shard.
struct tensor_spec {
  std::string name;
  dtype type = dtype::u8;
  std::vector<std::uint64_t> shape{};  ///< empty: a scalar

  bool operator==(const tensor_spec&) const = default;

  /// The product of the shape times the element size; empty if it overflows 64 bits or the type is unknown.
  [[nodiscard]] std::optional<std::uint64_t> bytes() const noexcept {
    std::uint64_t total = size_bytes(type);
    if (total == 0) return std::nullopt;
    for (const std::uint64_t dimension : shape) {
      if (__builtin_mul_overflow(total, dimension, &total)) return std::nullopt;
    }
    return total;
  }
};

/// A description such as "f32 [4096, 4096]".
[[nodiscard]] std::string describe(const tensor_spec& tensor);

}  // namespace tensorhub::inline TENSORHUB_MODE

#if defined(TENSORHUB_HEADER_ONLY)
#include "tensorhub/types/impl/tensor.ipp"
#endif
