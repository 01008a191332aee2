# Builds and runs a consumer in the given WAY. Fails with the output of the step that failed.
file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
set(arguments -DWAY=${WAY} -DTENSORHUB_SOURCE=${TENSORHUB_SOURCE} -DCMAKE_PREFIX_PATH=${prefix}
              -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Debug)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${ARGN}\n${output}")
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
  execute_process(
    COMMAND ${COMPILER} -std=c++20 -DTENSORHUB_COMPILED -I${TENSORHUB_SOURCE}/include
            ${CMAKE_CURRENT_LIST_DIR}/mixed/compiled.cpp ${WORK}/header_only.o -o ${WORK}/both_modes
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  if(NOT failed OR NOT output MATCHES "undefined reference to `is_here\\(tensorhub::compiled::")
    message(FATAL_ERROR "a program of both build modes links, or the linker does not say why not:\n${output}")
  endif()
  return()
endif()
if(WAY MATCHES "find_package|missing_component|compiled")
  step(${CMAKE_COMMAND} --install ${TENSORHUB_BUILD} --prefix ${prefix})
endif()
if(WAY STREQUAL optional_component)
  # A library that is not there: its component is left out with one line, or an error if it was asked for.
  set(configure ${CMAKE_COMMAND} -S ${TENSORHUB_SOURCE} -DCMAKE_CXX_COMPILER=${COMPILER} -DTENSORHUB_BUILD_TESTS=OFF
                -DTENSORHUB_BUILD_EXAMPLES=OFF)
  foreach(pair verbs=rdma-core libfabric=libfabric prometheus=prometheus-cpp etcd=etcd-gateway
               tls=OpenSSL cuda=CUDAToolkit)
    string(REGEX REPLACE "=.*" "" component ${pair})
    string(REGEX REPLACE ".*=" "" package ${pair})
    string(TOUPPER ${component} upper)
    set(without ${configure} -B ${WORK}/${component} -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
    execute_process(COMMAND ${without} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(failed OR NOT output MATCHES "left out: component ${component} needs ${package}[^\n]*Debian: [a-z]")
      message(FATAL_ERROR "no clear line about ${component}:\n${output}")
    endif()
    execute_process(COMMAND ${without} -DTENSORHUB_WITH_${upper}=ON RESULT_VARIABLE failed OUTPUT_VARIABLE output
                                                                     ERROR_VARIABLE output)
    if(NOT failed OR NOT output MATCHES "component ${component} needs")
      message(FATAL_ERROR "${component} was asked for, is missing, and that is no error:\n${output}")
    endif()
  endforeach()
  return()
endif()
set(configure ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK}/build ${arguments})
if(WAY STREQUAL missing_component)
  execute_process(COMMAND ${configure} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT failed)
    message(FATAL_ERROR "a component that does not exist was found")
  endif()
  if(NOT output MATCHES "component 'carrier_pigeon'")
    message(FATAL_ERROR "the error does not name the component:\n${output}")
  endif()
  return()
endif()
step(${configure})
step(${CMAKE_COMMAND} --build ${WORK}/build)
step(${WORK}/build/consumer)
