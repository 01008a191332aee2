# Shows that check.cmake can fail: each planted case breaks one of its rules and must be reported so.
#
#   cmake -DCOMPILER=<c++> -P self_test.cmake
cmake_minimum_required(VERSION 3.24)

function(must_report case sentence)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DSOURCE=${CMAKE_CURRENT_LIST_DIR}/planted/${case}.cpp"
            -P "${CMAKE_CURRENT_LIST_DIR}/check.cmake"
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}") # cmake breaks long messages into lines
  if(result EQUAL 0)
    message(FATAL_ERROR "the planted case ${case} was accepted")
  endif()
  if(NOT output MATCHES "${sentence}")
    message(FATAL_ERROR "the planted case ${case} was not refused with \"${sentence}\":\n${output}")
  endif()
endfunction()

must_report(compiles "compiles, and must not")
must_report(other_message "fails to compile, but without")
must_report(no_expectation "the first line is not")

execute_process(
  COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${COMPILER}" "-DSOURCE=${CMAKE_CURRENT_LIST_DIR}/planted/good.cpp" -P
          "${CMAKE_CURRENT_LIST_DIR}/check.cmake"
  RESULT_VARIABLE result
  OUTPUT_VARIABLE output
  ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "the good case was refused:\n${output}")
endif()
