#pragma once
/// \file tensor.ipp
/// Names of element types and the text form of a tensor: definitions of types/tensor.hpp.

#include "tensorhub/types/tensor.hpp"

#include <string>
#include <string_view>

namespace tensorhub::inline TENSORHUB_MODE {

TENSORHUB_DECL std::string_view to_string(dtype type) noexcept {
  switch (type) {
    case dtype::u8:
      return "u8";
    case dtype::i8:
      return "i8";
    case dtype::i16:
      return "i16";
    case dtype::u16:
      return "u16";
    case dtype::f16:
      return "f16";
    case dtype::bf16:
      return "bf16";
    case dtype::i32:
      return "i32";
    case dtype::u32:
      return "u32";
    case dtype::f32:
      return "f32";
    case dtype::i64:
      return "i64";
    case dtype::u64:
      return "u64";
    case dtype::f64:
      return "f64";
    case dtype::boolean:
      return "boolean";
    case dtype::f8_e4m3:
      return "f8_e4m3";
    case dtype::f8_e5m2:
      return "f8_e5m2";
    case dtype::f8_e8m0:
      return "f8_e8m0";
    case dtype::f8_e4m3fnuz:
      return "f8_e4m3fnuz";
    case dtype::f8_e5m2fnuz:
      return "f8_e5m2fnuz";
    case dtype::f4_e2m1_x2:
      return "f4_e2m1_x2";
    case dtype::c64:
      return "c64";
    case dtype::c128:
      return "c128";
  }
  return "unknown";
}

TENSORHUB_DECL std::string describe(const tensor_spec& tensor) {
  std::string text{to_string(tensor.type)};
  text += " [";
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(tensor.shape[i]);
  }
  return text + "]";
}

}  // namespace tensorhub::inline TENSORHUB_MODE
