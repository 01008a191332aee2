# tensorhub_component(<name> [INCLUDE <folder>] LINK <targets>...)
#
# Header-only component TensorHub::<name>, with an export set of its own. Nothing but the language standard,
# the include folder and the libraries reaches a consumer.
function(tensorhub_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "INCLUDE" "LINK")
  add_library(tensorhub_${name} INTERFACE)
  add_library(TensorHub::${name} ALIAS tensorhub_${name})
  set_target_properties(tensorhub_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(tensorhub_${name} INTERFACE cxx_std_20)
  target_link_libraries(tensorhub_${name} INTERFACE ${arg_LINK})
  if(arg_INCLUDE)
    target_include_directories(
      tensorhub_${name} INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}>
                                  $<INSTALL_INTERFACE:include>)
    set_property(GLOBAL APPEND PROPERTY TENSORHUB_INCLUDE_FOLDERS "${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}")
  endif()
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENTS ${name})
endfunction()
