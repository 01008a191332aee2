# One case of code that must not compile:
#
#   cmake -DCOMPILER=<c++> "-DFLAGS=<flag> <flag>" "-DINCLUDES=<directory>|<directory>" -DSOURCE=<case.cpp> -P check.cmake
#
# The first line of the case is "// expect: <regular expression>". The case must fail to compile, and the
# compiler's output must match the expression. (CMakeLists.txt builds the case's twin.)
cmake_minimum_required(VERSION 3.24)

foreach(variable IN ITEMS COMPILER SOURCE)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "check.cmake needs -D${variable}=...")
  endif()
endforeach()

get_filename_component(name "${SOURCE}" NAME_WE)
file(STRINGS "${SOURCE}" lines LIMIT_COUNT 1)
if(NOT lines MATCHES "^// expect: (.+)$")
  message(FATAL_ERROR "${name}: the first line is not \"// expect: <regular expression>\"")
endif()
set(expected "${CMAKE_MATCH_1}")

string(REPLACE " " ";" flags "${FLAGS}")
string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND "-I")
set(command "${COMPILER}" -std=c++20 ${flags} ${includes} -fsyntax-only)
set(ENV{LC_ALL} C) # messages in English, with plain quotes

execute_process(
  COMMAND ${command} "${SOURCE}"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${name}: compiles, and must not")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "${name}: fails to compile, but without \"${expected}\":\n${output}")
endif()
message(STATUS "${name}: refused with \"${CMAKE_MATCH_0}\"")
