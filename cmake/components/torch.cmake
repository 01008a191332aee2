# Tensors of libtorch. Its targets name each other in generator expressions, which whoever includes this project has to
# be able to follow: they are global.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
tensorhub_optional_component(
  torch
  PACKAGE Torch
  VERSION 1.13
  HEADERS torch.hpp
  DEBIAN "libtorch-dev"
  LINK torch)
unset(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
# Our programs include all of libtorch. That of 1.13 is no C++20 to clang: it uses c10::IValue where it is incomplete.
set(TENSORHUB_TORCH_PROGRAMS ${TENSORHUB_HAS_TORCH})
if(TENSORHUB_HAS_TORCH AND CMAKE_CXX_COMPILER_ID MATCHES Clang)
  find_package(Torch QUIET REQUIRED) # its version is not known outside of the function
  if(Torch_VERSION VERSION_LESS 2)
    message(STATUS "example libtorch and tests/torch are left out: libtorch ${Torch_VERSION} does not compile with clang++")
    set(TENSORHUB_TORCH_PROGRAMS FALSE)
  endif()
endif()
