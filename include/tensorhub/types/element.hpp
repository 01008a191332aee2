#pragma once
/// \file element.hpp
/// Element types of C++ as element types of tensors.
///
/// Others (std::complex, types of 16 and 8 bits of CUDA or Eigen) are made known by their users:
///
///     template <>
///     struct tensorhub::element_type<__nv_bfloat16> {
///       static constexpr tensorhub::dtype value = tensorhub::dtype::bf16;
///     };
///
/// Thread safety: no state.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <type_traits>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE {

template <typename T>
struct element_type {};

template <dtype Type>
using element_constant = std::integral_constant<dtype, Type>;

template <>
struct element_type<float> : element_constant<dtype::f32> {};
template <>
struct element_type<double> : element_constant<dtype::f64> {};
template <>
struct element_type<std::int8_t> : element_constant<dtype::i8> {};
template <>
struct element_type<std::int16_t> : element_constant<dtype::i16> {};
template <>
struct element_type<std::int32_t> : element_constant<dtype::i32> {};
template <>
struct element_type<std::int64_t> : element_constant<dtype::i64> {};
template <>
struct element_type<std::uint8_t> : element_constant<dtype::u8> {};
template <>
struct element_type<std::uint16_t> : element_constant<dtype::u16> {};
template <>
struct element_type<std::uint32_t> : element_constant<dtype::u32> {};
template <>
struct element_type<std::uint64_t> : element_constant<dtype::u64> {};
template <>
struct element_type<std::byte> : element_constant<dtype::u8> {};
template <>
struct element_type<bool> : element_constant<dtype::boolean> {};

/// Elements that lie one after the other in memory which outlives the range: a vector or an array that is not
/// a temporary, a span.
template <typename Range>
concept elements = std::ranges::contiguous_range<Range> && std::ranges::borrowed_range<Range> && requires {
  { element_type<std::ranges::range_value_t<Range>>::value } -> std::convertible_to<dtype>;
} && size_bytes(element_type<std::ranges::range_value_t<Range>>::value)
== sizeof(std::ranges::range_value_t<Range>);

template <typename Range>
concept writable_elements =
    elements<Range> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

}  // namespace tensorhub::inline TENSORHUB_MODE
