#pragma once
/// \file safetensors.hpp
/// The header of a safetensors file: an 8-byte little-endian length, then JSON with each tensor's element
/// type, shape and place in the data that follows. Format: https://huggingface.co/docs/safetensors

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <tensorhub/types/tensor.hpp>
#include <vector>

namespace serve_file {

/// A tensor and where its bytes are, from the start of the file.
struct placed_tensor {
  tensorhub::tensor_spec spec{};
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct contents {
  std::uint64_t header_bytes = 0;        ///< length field included
  std::vector<placed_tensor> tensors{};  ///< in the order of their offsets, without gaps
};

/// Throws `runtime_error` with a sentence if the file is not what the format says.
[[nodiscard]] inline contents read_header(std::span<const std::byte> file) {
  constexpr std::uint64_t largest_header_bytes = 100'000'000;  // the format's own limit
  std::uint64_t length = 0;
  if (file.size() < sizeof length) throw std::runtime_error("the file is too short for a safetensors file");
  std::memcpy(&length, file.data(), sizeof length);
  if (length > largest_header_bytes || length > file.size() - sizeof length)
    throw std::runtime_error("this is no safetensors file: its header would be longer than it may be");

  contents found;
  found.header_bytes = sizeof length + length;
  const auto* const text = reinterpret_cast<const char*>(file.data()) + sizeof length;
  static const std::map<std::string, tensorhub::dtype> types{
      {"BOOL", tensorhub::dtype::boolean},    {"U8", tensorhub::dtype::u8},
      {"I8", tensorhub::dtype::i8},           {"F8_E4M3", tensorhub::dtype::f8_e4m3},
      {"F8_E5M2", tensorhub::dtype::f8_e5m2}, {"I16", tensorhub::dtype::i16},
      {"U16", tensorhub::dtype::u16},         {"F16", tensorhub::dtype::f16},
      {"BF16", tensorhub::dtype::bf16},       {"I32", tensorhub::dtype::i32},
      {"U32", tensorhub::dtype::u32},         {"F32", tensorhub::dtype::f32},
      {"I64", tensorhub::dtype::i64},         {"U64", tensorhub::dtype::u64},
      {"F64", tensorhub::dtype::f64}};
  try {
    const auto header = nlohmann::json::parse(text, text + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
      const auto end = entry.at("data_offsets").at(1).get<std::uint64_t>();
      if (begin > end || end > file.size() - found.header_bytes)
        throw std::runtime_error("tensor '" + name + "' lies outside of the file");
      placed_tensor tensor{{name, tensorhub::dtype::u8, {}}, found.header_bytes + begin, end - begin};
      const auto type = types.find(entry.at("dtype").get<std::string>());
      tensor.spec.shape = entry.at("shape").get<std::vector<std::uint64_t>>();
      if (type != types.end()) {
        tensor.spec.type = type->second;
        if (tensor.spec.bytes() != tensor.bytes)
          throw std::runtime_error("tensor '" + name + "' has another size than its shape says");
      } else {
        tensor.spec.shape = {
            tensor.bytes};  // a type that is newer than this program: its bytes travel all the same
      }
      found.tensors.push_back(std::move(tensor));
    }
  } catch (const nlohmann::json::exception& e) {
    throw std::runtime_error(std::string{"the header is no safetensors header: "} + e.what());
  }
  std::ranges::stable_sort(found.tensors, {}, [](const placed_tensor& t) {
    return std::pair{t.offset, t.bytes};
  });
  std::uint64_t next = found.header_bytes;
  for (const placed_tensor& tensor : found.tensors) {
    if (tensor.offset != next)
      throw std::runtime_error("the data has a gap or an overlap before tensor '" + tensor.spec.name + "'");
    next += tensor.bytes;
  }
  if (next != file.size()) throw std::runtime_error("the file is longer than its tensors");
  return found;
}

}  // namespace serve_file
