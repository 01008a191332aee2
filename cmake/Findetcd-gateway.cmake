# Finds what speaks to etcd's JSON gateway, libcurl and nlohmann-json: target etcd-gateway::etcd-gateway.
find_path(etcd-gateway_CURL_INCLUDE_DIR NAMES curl/curl.h)
find_library(etcd-gateway_CURL_LIBRARY NAMES curl)
find_path(etcd-gateway_JSON_INCLUDE_DIR NAMES nlohmann/json.hpp)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  etcd-gateway
  REQUIRED_VARS etcd-gateway_CURL_LIBRARY etcd-gateway_CURL_INCLUDE_DIR etcd-gateway_JSON_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "install the headers of both (Debian: libcurl4-openssl-dev nlohmann-json3-dev)")
if(etcd-gateway_FOUND AND NOT TARGET etcd-gateway::etcd-gateway)
  add_library(etcd-gateway::etcd-gateway INTERFACE IMPORTED)
  set_target_properties(
    etcd-gateway::etcd-gateway
    PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${etcd-gateway_CURL_INCLUDE_DIR};${etcd-gateway_JSON_INCLUDE_DIR}"
               INTERFACE_LINK_LIBRARIES "${etcd-gateway_CURL_LIBRARY}")
endif()
mark_as_advanced(etcd-gateway_CURL_INCLUDE_DIR etcd-gateway_CURL_LIBRARY etcd-gateway_JSON_INCLUDE_DIR)
