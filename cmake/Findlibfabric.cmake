# Finds libfabric 1.17 or newer: target libfabric::libfabric.
find_path(libfabric_INCLUDE_DIR NAMES rdma/fabric.h)
find_library(libfabric_LIBRARY NAMES fabric)
if(libfabric_INCLUDE_DIR)
  file(STRINGS "${libfabric_INCLUDE_DIR}/rdma/fabric.h" libfabric_lines REGEX "define FI_(MAJOR|MINOR)_VERSION +[0-9]+")
  string(REGEX REPLACE ".*MAJOR_VERSION +([0-9]+).*MINOR_VERSION +([0-9]+).*" "\\1.\\2" libfabric_VERSION
                       "${libfabric_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  libfabric
  REQUIRED_VARS libfabric_LIBRARY libfabric_INCLUDE_DIR
  VERSION_VAR libfabric_VERSION
  REASON_FAILURE_MESSAGE "install libfabric's headers (Debian: libfabric-dev)")
if(libfabric_FOUND AND NOT TARGET libfabric::libfabric)
  add_library(libfabric::libfabric INTERFACE IMPORTED)
  set_target_properties(
    libfabric::libfabric PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${libfabric_INCLUDE_DIR}"
                                    INTERFACE_LINK_LIBRARIES "${libfabric_LIBRARY}")
endif()
mark_as_advanced(libfabric_INCLUDE_DIR libfabric_LIBRARY)
