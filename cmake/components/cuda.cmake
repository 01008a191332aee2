# GPU memory. Needs nvcc and cuda.h; the driver is loaded when a program runs.
tensorhub_optional_component(
  cuda
  PACKAGE CUDAToolkit
  HEADERS memory/cuda.hpp memory/cuda
  VERSION 12.0
  DEBIAN "nvidia-cuda-toolkit, or NVIDIA's own packages"
  NEEDS CUDAToolkit_NVCC_EXECUTABLE
  LINK CUDA::toolkit ${CMAKE_DL_LIBS})
if(NOT TENSORHUB_HAS_CUDA)
  return() # from this file
endif()
find_package(CUDAToolkit 12.0 QUIET REQUIRED) # its version is not known outside of the function

# The kernels: nvcc makes one file of machine code for each architecture and of portable code of the lowest, which newer
# drivers translate for what is not in the list; the file becomes a header. CUDA is no language of the project.
set(nvcc "${CUDAToolkit_NVCC_EXECUTABLE}")
if(NOT DEFINED CACHE{TENSORHUB_CUDA_ARCHITECTURES})
  # A100, H100 and H200, B200: those of them that this nvcc knows.
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(architectures)
  foreach(number 80 90 100)
    if(known MATCHES "compute_${number}\n")
      list(APPEND architectures ${number})
    endif()
  endforeach()
  set(TENSORHUB_CUDA_ARCHITECTURES "${architectures}" CACHE STRING "Architectures of the kernels, lowest first: 80;90")
endif()
set(targets)
foreach(number IN LISTS TENSORHUB_CUDA_ARCHITECTURES)
  list(APPEND targets -gencode arch=compute_${number},code=sm_${number})
endforeach()
list(GET TENSORHUB_CUDA_ARCHITECTURES 0 lowest)
list(APPEND targets -gencode arch=compute_${lowest},code=compute_${lowest})
set(warnings)
if(PROJECT_IS_TOP_LEVEL)
  set(warnings -Xcompiler=-Wall,-Wextra)
  if(TENSORHUB_WARNINGS_ARE_ERRORS)
    list(APPEND warnings -Werror all-warnings -Xcompiler=-Werror)
  endif()
endif()
set(kernels "${PROJECT_SOURCE_DIR}/include/tensorhub/memory/cuda/kernels")
set(image "${PROJECT_BINARY_DIR}/cuda/kernels.fatbin")
set(generated "${PROJECT_BINARY_DIR}/cuda/include")
set(header "${generated}/tensorhub/memory/cuda/kernel_image.hpp")
string(REPLACE ";" " " architectures "${TENSORHUB_CUDA_ARCHITECTURES}")
file(MAKE_DIRECTORY "${generated}/tensorhub/memory/cuda") # not every generator makes a command's directories
add_custom_command(
  OUTPUT "${header}"
  COMMAND "${nvcc}" -fatbin -std=c++17 ${targets} ${warnings} -I "${PROJECT_SOURCE_DIR}/include" -o "${image}"
          "${kernels}/kernels.cu"
  COMMAND ${CMAKE_COMMAND} "-DIMAGE=${image}" "-DHEADER=${header}" "-DTOOLKIT=${CUDAToolkit_VERSION}"
          "-DARCHITECTURES=${architectures}" -P "${kernels}/image_header.cmake"
  DEPENDS "${kernels}/kernels.cu" "${kernels}/team.cuh" "${kernels}/copy.cuh" "${kernels}/xxh3.cuh"
          "${kernels}/blake3.cuh"
          "${kernels}/image_header.cmake" "${PROJECT_SOURCE_DIR}/include/tensorhub/memory/cuda/jobs.hpp"
  COMMENT "CUDA kernels for ${architectures}"
  VERBATIM)
set(always)
if(TENSORHUB_INSTALL)
  set(always ALL) # else only for who uses it
endif()
add_custom_target(tensorhub_cuda_kernels ${always} DEPENDS "${header}")
add_dependencies(tensorhub_cuda tensorhub_cuda_kernels)
target_include_directories(tensorhub_cuda INTERFACE $<BUILD_INTERFACE:${generated}>)
if(TENSORHUB_INSTALL)
  install(FILES "${header}" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tensorhub/memory/cuda)
endif()
