# Writes the file IMAGE into HEADER as an array of words (fewer for a compiler to read than bytes), with what
# it was built by and for.
file(READ "${IMAGE}" bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR missing "(16 - ${digits} % 16) % 16")
string(REPEAT "0" ${missing} padding)
string(APPEND bytes "${padding}")
math(EXPR words "(${digits} + ${missing}) / 16")
string(REGEX REPLACE "(..)(..)(..)(..)(..)(..)(..)(..)" "0x\\8\\7\\6\\5\\4\\3\\2\\1u,\n" lines "${bytes}")
file(WRITE "${HEADER}.new" "#pragma once
/// \\file kernel_image.hpp
/// The kernels of TensorHub::cuda as machine code (nvcc's fatbin). Made by the build: do not edit.

#include <cstdint>

namespace tensorhub::cuda_jobs {

inline constexpr char kernel_toolkit[] = \"${TOOLKIT}\";
inline constexpr char kernel_architectures[] = \"${ARCHITECTURES}\";
alignas(64) inline constexpr std::uint64_t kernel_image[${words}] = {
${lines}};

}  // namespace tensorhub::cuda_jobs
")
file(RENAME "${HEADER}.new" "${HEADER}")
