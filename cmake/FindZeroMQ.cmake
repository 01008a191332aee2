# Finds libzmq and its C++ header (cppzmq): target ZeroMQ::ZeroMQ.
find_path(ZeroMQ_INCLUDE_DIR NAMES zmq.h)
find_path(ZeroMQ_CXX_INCLUDE_DIR NAMES zmq.hpp)
find_library(ZeroMQ_LIBRARY NAMES zmq libzmq)
if(ZeroMQ_INCLUDE_DIR AND EXISTS "${ZeroMQ_INCLUDE_DIR}/zmq.h")
  file(STRINGS "${ZeroMQ_INCLUDE_DIR}/zmq.h" _zeromq_lines REGEX "^#define ZMQ_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^;0-9]*([0-9]+)[^;0-9]*" "\\1" _zeromq_numbers "${_zeromq_lines}")
  string(REPLACE ";" "." ZeroMQ_VERSION "${_zeromq_numbers}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  ZeroMQ
  REQUIRED_VARS ZeroMQ_LIBRARY ZeroMQ_INCLUDE_DIR ZeroMQ_CXX_INCLUDE_DIR
  VERSION_VAR ZeroMQ_VERSION
  REASON_FAILURE_MESSAGE "install libzmq and cppzmq (Debian: libzmq3-dev cppzmq-dev)")
if(ZeroMQ_FOUND AND NOT TARGET ZeroMQ::ZeroMQ)
  add_library(ZeroMQ::ZeroMQ UNKNOWN IMPORTED)
  set_target_properties(
    ZeroMQ::ZeroMQ PROPERTIES IMPORTED_LOCATION "${ZeroMQ_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES
                              "${ZeroMQ_INCLUDE_DIR};${ZeroMQ_CXX_INCLUDE_DIR}")
endif()
mark_as_advanced(ZeroMQ_LIBRARY ZeroMQ_INCLUDE_DIR ZeroMQ_CXX_INCLUDE_DIR)
