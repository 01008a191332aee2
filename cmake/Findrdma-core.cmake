# Finds rdma-core: target rdma-core::rdma-core (libibverbs and librdmacm).
find_path(rdma-core_INCLUDE_DIR NAMES infiniband/verbs.h)
find_path(rdma-core_CM_INCLUDE_DIR NAMES rdma/rdma_cma.h)
find_library(rdma-core_VERBS_LIBRARY NAMES ibverbs)
find_library(rdma-core_CM_LIBRARY NAMES rdmacm)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  rdma-core
  REQUIRED_VARS rdma-core_VERBS_LIBRARY rdma-core_CM_LIBRARY rdma-core_INCLUDE_DIR rdma-core_CM_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install rdma-core's headers (Debian: libibverbs-dev librdmacm-dev)")
if(rdma-core_FOUND AND NOT TARGET rdma-core::rdma-core)
  add_library(rdma-core::rdma-core INTERFACE IMPORTED)
  set_target_properties(
    rdma-core::rdma-core
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${rdma-core_INCLUDE_DIR};${rdma-core_CM_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES "${rdma-core_CM_LIBRARY};${rdma-core_VERBS_LIBRARY}")
endif()
mark_as_advanced(rdma-core_INCLUDE_DIR rdma-core_CM_INCLUDE_DIR rdma-core_VERBS_LIBRARY rdma-core_CM_LIBRARY)
