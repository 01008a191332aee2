# Finds prometheus-cpp (its pull part): target prometheus-cpp::pull.
find_path(prometheus-cpp_INCLUDE_DIR NAMES prometheus/exposer.h)
find_library(prometheus-cpp_PULL_LIBRARY NAMES prometheus-cpp-pull)
find_library(prometheus-cpp_CORE_LIBRARY NAMES prometheus-cpp-core)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  prometheus-cpp
  REQUIRED_VARS prometheus-cpp_PULL_LIBRARY prometheus-cpp_CORE_LIBRARY prometheus-cpp_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install prometheus-cpp's headers (Debian: prometheus-cpp-dev)")
if(prometheus-cpp_FOUND AND NOT TARGET prometheus-cpp::pull)
  add_library(prometheus-cpp::pull INTERFACE IMPORTED)
  set_target_properties(
    prometheus-cpp::pull
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${prometheus-cpp_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES "${prometheus-cpp_PULL_LIBRARY};${prometheus-cpp_CORE_LIBRARY}")
endif()
mark_as_advanced(prometheus-cpp_INCLUDE_DIR prometheus-cpp_PULL_LIBRARY prometheus-cpp_CORE_LIBRARY)
