# Builds and runs a consumer in the given WAY. Fails with the output of the step that failed. Steps that only configure
# share one build folder, because looking at the compiler is what takes the time.
file(REMOVE_RECURSE ${WORK})
set(ENV{CMAKE_GENERATOR} ${GENERATOR}) # of the steps: the machine may have no other
set(prefix ${WORK}/prefix)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()

# must_fail(<what is wrong if the command succeeds> <what its output has to match> <command>...)
function(must_fail wrong expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT failed)
    message(FATAL_ERROR "${wrong}:\n${output}")
  endif()
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # cmake breaks long messages into lines
  if(NOT output MATCHES "${expected}")
    message(FATAL_ERROR "the error does not say \"${expected}\":\n${output}")
  endif()
endfunction()

if(WAY STREQUAL mixed)
  # A program of both build modes does not link; the twin, of one mode, does.
  file(MAKE_DIRECTORY ${WORK})
  set(compile ${COMPILER} -std=c++20 -I${TENSORHUB_SOURCE}/include ${CMAKE_CURRENT_LIST_DIR}/mixed/compiled.cpp
              ${CMAKE_CURRENT_LIST_DIR}/mixed/header_only.cpp)
  step(${compile} -o ${WORK}/one_mode)
  step(${COMPILER} -std=c++20 -I${TENSORHUB_SOURCE}/include -c ${CMAKE_CURRENT_LIST_DIR}/mixed/header_only.cpp -o
       ${WORK}/header_only.o)
  must_fail("a program of both build modes links" "undefined reference to `is_here\\(tensorhub::compiled::"
            ${COMPILER} -std=c++20 -DTENSORHUB_COMPILED -I${TENSORHUB_SOURCE}/include
            ${CMAKE_CURRENT_LIST_DIR}/mixed/compiled.cpp ${WORK}/header_only.o -o ${WORK}/both_modes)
  must_fail("a program of files with and without debug containers links"
            "undefined reference to `is_here\\(tensorhub::header_only_with_debug_containers::"
            ${COMPILER} -std=c++20 -D_GLIBCXX_DEBUG -I${TENSORHUB_SOURCE}/include
            ${CMAKE_CURRENT_LIST_DIR}/mixed/compiled.cpp ${WORK}/header_only.o -o ${WORK}/both_containers)
  return()
endif()
if(WAY STREQUAL optional_component)
  # A library that is not there: its component is left out with one line, or an error if it was asked for.
  set(pairs verbs=rdma-core libfabric=libfabric prometheus=prometheus-cpp etcd=etcd-gateway tls=OpenSSL
            cuda=CUDAToolkit torch=Torch)
  set(without ${CMAKE_COMMAND} -S ${TENSORHUB_SOURCE} -B ${WORK}/build -DCMAKE_CXX_COMPILER=${COMPILER}
              -DTENSORHUB_BUILD_TESTS=OFF -DTENSORHUB_BUILD_EXAMPLES=OFF -DTENSORHUB_BUILD_TOOLS=OFF)
  foreach(pair IN LISTS pairs)
    string(REGEX REPLACE ".*=" "" package ${pair})
    list(APPEND without -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
  endforeach()
  execute_process(COMMAND ${without} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  foreach(pair IN LISTS pairs)
    string(REGEX REPLACE "=.*" "" component ${pair})
    string(REGEX REPLACE ".*=" "" package ${pair})
    if(failed OR NOT output MATCHES "left out: component ${component} needs ${package}[^\n]*Debian: [a-zA-Z]")
      message(FATAL_ERROR "no clear line about ${component}:\n${output}")
    endif()
  endforeach()
  # A user's flags or compiler may warn of more than ours do: only who asks for it, as our presets do, is stopped by that.
  file(STRINGS ${WORK}/build/CMakeCache.txt strict REGEX "^TENSORHUB_WARNINGS_ARE_ERRORS:BOOL=")
  if(NOT strict MATCHES "=OFF$")
    message(FATAL_ERROR "warnings are errors, and nobody has asked for that: \"${strict}\"")
  endif()
  # Headers are looked for where they were installed, also if that is another folder.
  step(${without} -DTENSORHUB_BUILD_COMPILED=OFF -DCMAKE_INSTALL_INCLUDEDIR=headers)
  step(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${prefix})
  step(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/consumer -DWAY=include_folder
       -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${COMPILER})
  # What links the compiled library gets it.
  step(${without} -DTENSORHUB_BUILD_COMPILED=OFF -DTENSORHUB_BUILD_TOOLS=ON)
  set(last)
  foreach(pair IN LISTS pairs)
    string(REGEX REPLACE "=.*" "" component ${pair})
    string(TOUPPER ${component} upper)
    must_fail("${component} was asked for, is missing, and that is no error" "component ${component} needs" ${without}
              ${last} -DTENSORHUB_WITH_${upper}=ON)
    set(last -DTENSORHUB_WITH_${upper}=AUTO)
  endforeach()
  return()
endif()

# No build type, compiler flag or warning is given here: what the consumer has of them is its own.
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build -DTENSORHUB_SOURCE=${TENSORHUB_SOURCE}
              -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
if(WAY MATCHES "find_package|compiled")
  step(${CMAKE_COMMAND} --install ${TENSORHUB_BUILD} --prefix ${prefix})
endif()
if(WAY STREQUAL find_package)
  must_fail("a component that does not exist was found" "component 'carrier_pigeon'" ${configure} -DWAY=missing_component)
  must_fail("version 0.1 was taken for 0.2" "compatible with requested version" ${configure} -DWAY=wrong_version)
  set(disable -DCMAKE_DISABLE_FIND_PACKAGE_)
  must_fail("TensorHub was found without libsodium" "component 'core' needs Sodium" ${configure}
            -DWAY=missing_core_library ${disable}Sodium=ON)
  step(${configure} -DWAY=missing_library ${disable}Sodium=OFF ${disable}rdma-core=ON)
  list(APPEND configure ${disable}rdma-core=OFF)
endif()
step(${configure} -DWAY=${WAY})
step(${CMAKE_COMMAND} --build ${WORK}/build)
step(${WORK}/build/consumer)
if(WAY STREQUAL compiled)
  # The C library needs nothing but a C compiler.
  set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer_c -B ${WORK}/build_c
                -DCMAKE_PREFIX_PATH=${prefix})
  must_fail("a project without C++ has found the core" "component 'core' needs the language CXX" ${configure}
            -DWAY=with_core)
  step(${configure} -DWAY=alone)
  step(${CMAKE_COMMAND} --build ${WORK}/build_c)
  step(${WORK}/build_c/consumer_c)
  # So does pkg-config, also after the installation has been moved.
  file(RENAME ${prefix} ${prefix}_moved)
  file(GLOB_RECURSE pc ${prefix}_moved/*/tensorhub.pc)
  get_filename_component(pc_folder "${pc}" DIRECTORY)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pc_folder} pkg-config --cflags --libs tensorhub
                  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  step(cc ${CMAKE_CURRENT_LIST_DIR}/consumer_c/main.c ${flags} -o ${WORK}/build_c/by_pkg_config)
  get_filename_component(lib_folder ${pc_folder} DIRECTORY)
  step(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${lib_folder} ${WORK}/build_c/by_pkg_config)
endif()
