# Finds xxHash: target xxHash::xxHash. Header-only, unless the installed library can choose the processor's widest
# vectors at run time (its "dispatch"): then the library is linked and TENSORHUB_XXHASH_DISPATCH says so.
find_path(xxHash_INCLUDE_DIR NAMES xxhash.h)
find_library(xxHash_LIBRARY NAMES xxhash)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  xxHash
  REQUIRED_VARS xxHash_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install xxHash (Debian: libxxhash-dev)")
if(xxHash_FOUND AND NOT TARGET xxHash::xxHash)
  add_library(xxHash::xxHash INTERFACE IMPORTED)
  set_target_properties(xxHash::xxHash PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}")
  if(xxHash_LIBRARY AND EXISTS "${xxHash_INCLUDE_DIR}/xxh_x86dispatch.h")
    include(CheckCXXSourceCompiles)
    include(CMakePushCheckState)
    cmake_push_check_state(RESET)
    set(CMAKE_REQUIRED_INCLUDES "${xxHash_INCLUDE_DIR}")
    set(CMAKE_REQUIRED_LIBRARIES "${xxHash_LIBRARY}")
    check_cxx_source_compiles(
      "#include <xxh_x86dispatch.h>
       int main() { return static_cast<int>(XXH3_128bits_withSeed_dispatch(\"\", 0, 1).low64 & 1u); }"
      xxHash_HAS_DISPATCH)
    cmake_pop_check_state()
    if(xxHash_HAS_DISPATCH)
      set_target_properties(xxHash::xxHash PROPERTIES INTERFACE_LINK_LIBRARIES "${xxHash_LIBRARY}"
                                                      INTERFACE_COMPILE_DEFINITIONS TENSORHUB_XXHASH_DISPATCH)
    endif()
  endif()
endif()
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)
