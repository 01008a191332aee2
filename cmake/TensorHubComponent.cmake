# tensorhub_component(<name> [INCLUDE <folder>] [HEADERS <names>...] LINK <targets>...)
#
# Header-only component TensorHub::<name>, with an export set of its own. Nothing but the language standard,
# the include folder and the libraries reaches a consumer. INCLUDE: an include root of its own (the transports).
# HEADERS: the files and folders below include/tensorhub that belong to this component and not to the core; they
# are installed with it.
function(tensorhub_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "INCLUDE" "HEADERS;LINK")
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
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENT_HEADERS ${arg_HEADERS})
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENTS ${name})
endfunction()

# tensorhub_optional_component(<name> PACKAGE <package> [VERSION <version>] DEBIAN <packages> [NEEDS <variable>]
#                              (INCLUDE <folder> | HEADERS <names>...) LINK <targets>...)
#
# A component that needs a library which may not be there. TENSORHUB_WITH_<NAME>: AUTO builds it if the library is
# found and says in one line if not; ON makes a missing library an error; OFF leaves the component out. Sets
# TENSORHUB_HAS_<NAME> for our own tests and benchmarks. NEEDS: a variable that finding the package has to set.
function(tensorhub_optional_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "PACKAGE;VERSION;DEBIAN;NEEDS;INCLUDE" "HEADERS;LINK")
  string(TOUPPER ${name} upper)
  set(TENSORHUB_WITH_${upper} AUTO CACHE STRING "Component ${name}, which needs ${arg_PACKAGE}: AUTO, ON or OFF")
  set_property(CACHE TENSORHUB_WITH_${upper} PROPERTY STRINGS AUTO ON OFF)
  set(has FALSE)
  if(TENSORHUB_WITH_${upper})
    find_package(${arg_PACKAGE} ${arg_VERSION} QUIET)
    set(has ${${arg_PACKAGE}_FOUND})
    if(has AND arg_NEEDS AND NOT ${arg_NEEDS})
      set(has FALSE)
    endif()
    set(sentence
        "component ${name} needs ${arg_PACKAGE} ${arg_VERSION}, which was not found (Debian: ${arg_DEBIAN})")
    if(NOT has AND NOT TENSORHUB_WITH_${upper} STREQUAL AUTO)
      message(FATAL_ERROR "TensorHub: ${sentence}")
    elseif(NOT has)
      message(STATUS "TensorHub: left out: ${sentence}")
    endif()
  endif()
  if(has)
    tensorhub_component(
      ${name}
      INCLUDE ${arg_INCLUDE}
      HEADERS ${arg_HEADERS}
      LINK TensorHub::core ${arg_LINK})
    if(EXISTS "${PROJECT_SOURCE_DIR}/cmake/Find${arg_PACKAGE}.cmake") # else it is CMake's own
      set_property(GLOBAL APPEND PROPERTY TENSORHUB_FIND_MODULES Find${arg_PACKAGE}.cmake)
    endif()
    set_property(GLOBAL APPEND PROPERTY TENSORHUB_OPTIONAL_PACKAGES "${name}=${arg_PACKAGE}")
  endif()
  set(TENSORHUB_HAS_${upper} ${has} CACHE INTERNAL "")
endfunction()
