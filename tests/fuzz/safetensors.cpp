/// \file safetensors.cpp
/// The header of a safetensors file, of examples/serve_file: refused with a sentence, or the tensors tile the
/// file.
///
/// Input: the header's JSON; how many bytes of data follow it is the first byte's choice (255: the input is
/// the whole file).

#include <stdexcept>
#include <vector>

#include "../../examples/serve_file/safetensors.hpp"
#include "input.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  fuzz::input in{data, bytes};
  const std::uint8_t data_bytes = in.byte();
  std::vector<std::uint8_t> file;
  const std::string_view text = in.rest();
  if (data_bytes != 255) {
    const std::uint64_t length = text.size();
    file.resize(sizeof length);
    std::memcpy(file.data(), &length, sizeof length);
  }
  file.insert(file.end(), text.begin(), text.end());
  if (data_bytes != 255) file.resize(file.size() + data_bytes);
  try {
    const auto found = serve_file::read_header(std::as_bytes(std::span{file}));
    std::uint64_t next = found.header_bytes;
    for (const auto& tensor : found.tensors) {
      fuzz::require(tensor.offset == next, "tensors have neither gaps nor overlaps");
      next += tensor.bytes;
      const auto said = tensor.spec.bytes();
      fuzz::require(said && *said == tensor.bytes, "a tensor has the size that its shape says");
    }
    fuzz::require(next == file.size(), "tensors end with the file");
  } catch (const std::runtime_error&) {  // the file is not one
  }
  return 0;
}
