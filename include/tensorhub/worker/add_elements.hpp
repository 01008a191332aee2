#pragma once
/// \file add_elements.hpp
/// `add` of publishers and subscribers for elements whose type C++ knows.
///
/// Thread safety: as `add`.

#include <cstdint>
#include <initializer_list>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tensorhub/detail/build_mode.hpp"
#include "tensorhub/error.hpp"
#include "tensorhub/types/element.hpp"
#include "tensorhub/types/tensor.hpp"

namespace tensorhub::inline TENSORHUB_MODE::detail {

/// No dimensions: one, of all elements. Throws `invalid_argument` if the dimensions do not make their number.
template <typename Door, elements Range>
void add_elements(Door& door, std::string name, Range&& values,
                  std::initializer_list<std::uint64_t> dimensions) {
  using element = std::ranges::range_value_t<Range>;
  const auto count = static_cast<std::uint64_t>(std::ranges::size(values));
  tensor_spec told{std::move(name), element_type<element>::value, {dimensions.begin(), dimensions.end()}};
  if (dimensions.size() == 0) told.shape = {count};
  if (told.bytes() != count * sizeof(element)) {
    throw error(errc::invalid_argument, "tensor '" + told.name + "' was given " + std::to_string(count) +
                                            " elements, which are not those of " + describe(told));
  }
  door.add(std::move(told.name), std::ranges::data(values), std::span<const std::uint64_t>{told.shape},
           told.type);
}

}  // namespace tensorhub::inline TENSORHUB_MODE::detail
