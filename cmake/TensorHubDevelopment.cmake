# What our own tests, examples and benchmarks are built with. None of it reaches a consumer.
add_library(tensorhub_development INTERFACE)
target_compile_options(tensorhub_development INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(TENSORHUB_WARNINGS_ARE_ERRORS)
  target_compile_options(tensorhub_development INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 at -O3 sees overlapping copies in `"text" + std::string` (GCC bug 105651, fixed in 13).
  target_compile_options(tensorhub_development INTERFACE -Wno-restrict)
endif()
# g++ collects its garbage from 1 GiB on instead of 128 MiB: a file that includes tensorhub.hpp and tcp.hpp took 0.76 of
# the time, one that uses a hub 0.97 (user time, one run each).
target_compile_options(tensorhub_development INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>)
if(TENSORHUB_SANITIZE)
  target_compile_options(tensorhub_development INTERFACE -fsanitize=${TENSORHUB_SANITIZE} -fno-omit-frame-pointer
                                                         -fno-sanitize-recover=all)
  # g++ takes members of moved optionals for uninitialised when the code is instrumented.
  target_compile_options(tensorhub_development INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(tensorhub_development INTERFACE -fsanitize=${TENSORHUB_SANITIZE})
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(TENSORHUB_CCACHE ccache)
  if(TENSORHUB_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TENSORHUB_CCACHE}")
  endif()
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

# tensorhub_precompile(<target> <headers>...)
#
# What the files of a target include, parsed once: g++ takes 1.8 s for a system test instead of 3.8 s, and 1.4 s less for
# each file of the transports' conformance (user time, medians of 3, 2026-11-28). Unit tests have too little in common:
# they would take an eighth less. A file of the target that forgets one of these headers compiles all the same.
function(tensorhub_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp") # for ccache
  endif()
endfunction()
