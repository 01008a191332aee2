# tensorhub_component(<name> [COMPILED] [INCLUDE <folder>] [HEADERS <names>...] LINK <targets>...)
#
# Header-only component TensorHub::<name>, with an export set of its own. Nothing but the language standard,
# the include folder and the libraries reaches a consumer. INCLUDE: an include root of its own (the transports).
# HEADERS: the files and folders below include/tensorhub that belong to this component and not to the core; they
# are installed with it. COMPILED: it has a twin, TensorHub::compiled_<name>, if TENSORHUB_BUILD_COMPILED is set; that
# links the twins of what the component links.
function(tensorhub_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COMPILED" "INCLUDE" "HEADERS;LINK")
  add_library(tensorhub_${name} INTERFACE)
  add_library(TensorHub::${name} ALIAS tensorhub_${name})
  set_target_properties(tensorhub_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(tensorhub_${name} INTERFACE cxx_std_20)
  target_link_libraries(tensorhub_${name} INTERFACE ${arg_LINK})
  if(arg_INCLUDE)
    set(system) # as find_package has it: a consumer's warnings are about the consumer's files
    if(NOT PROJECT_IS_TOP_LEVEL)
      set(system SYSTEM)
    endif()
    target_include_directories(
      tensorhub_${name} ${system}
      INTERFACE $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}>
                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    set_property(GLOBAL APPEND PROPERTY TENSORHUB_INCLUDE_FOLDERS "${CMAKE_CURRENT_SOURCE_DIR}/${arg_INCLUDE}")
  endif()
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENT_HEADERS ${arg_HEADERS})
  set_property(GLOBAL PROPERTY TENSORHUB_HEADERS_OF_${name} ${arg_HEADERS})
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENTS ${name})
  if(arg_COMPILED AND TENSORHUB_BUILD_COMPILED)
    set(twins ${arg_LINK})
    list(FILTER twins INCLUDE REGEX "^TensorHub::")
    list(TRANSFORM twins REPLACE "^TensorHub::" "TensorHub::compiled_")
    list(TRANSFORM twins REPLACE "_core$" "")
    tensorhub_compiled_component(compiled_${name} OF ${name} LINK TensorHub::${name} ${twins})
  endif()
endfunction()

# tensorhub_optional_component(<name> [COMPILED] PACKAGE <package> [VERSION <version>] DEBIAN <packages>
#                              [NEEDS <variable>] (INCLUDE <folder> | HEADERS <names>...) LINK <targets>...)
#
# A component that needs a library which may not be there. TENSORHUB_WITH_<NAME>: AUTO builds it if the library is
# found and says in one line if not; ON makes a missing library an error; OFF leaves the component out. Sets
# TENSORHUB_HAS_<NAME> for our own tests and benchmarks. NEEDS: a variable that finding the package has to set.
function(tensorhub_optional_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "COMPILED" "PACKAGE;VERSION;DEBIAN;NEEDS;INCLUDE" "HEADERS;LINK")
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
    set(compiled)
    if(arg_COMPILED)
      set(compiled COMPILED)
    endif()
    set(include) # not the keyword alone: CMake 3.31 warns of one without a value
    if(arg_INCLUDE)
      set(include INCLUDE ${arg_INCLUDE})
    endif()
    tensorhub_component(
      ${name} ${compiled} ${include}
      HEADERS ${arg_HEADERS}
      LINK TensorHub::core ${arg_LINK})
    if(EXISTS "${PROJECT_SOURCE_DIR}/cmake/Find${arg_PACKAGE}.cmake") # else it is CMake's own
      set_property(GLOBAL APPEND PROPERTY TENSORHUB_FIND_MODULES Find${arg_PACKAGE}.cmake)
    endif()
    set_property(GLOBAL APPEND PROPERTY TENSORHUB_OPTIONAL_PACKAGES "${name}=${arg_PACKAGE}")
  endif()
  set(TENSORHUB_HAS_${upper} ${has} CACHE INTERNAL "")
endfunction()

# tensorhub_compiled_component(<name> [OF <component>] [LINK <targets>...])
#
# Static library TensorHub::<name>: the implementation files (impl/*.ipp) of a component, compiled once, one unit per
# folder. Whoever links it is in compiled mode (include/tensorhub/detail/build_mode.hpp). OF: the transport or other
# component whose files these are; without it they are the core's.
function(tensorhub_compiled_component name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "OF" "LINK")
  set(root "${CMAKE_CURRENT_SOURCE_DIR}/include")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${root} ${root}/tensorhub/*.ipp)
  if(arg_OF)
    set(patterns)
    get_property(headers GLOBAL PROPERTY TENSORHUB_HEADERS_OF_${arg_OF})
    if(headers) # it lies under the core's root
      foreach(header IN LISTS headers)
        get_filename_component(stem ${header} NAME_WE)
        get_filename_component(folder ${header} DIRECTORY)
        list(APPEND patterns "^tensorhub/${header}/" "^tensorhub/(${folder}/)?impl/${stem}\\.ipp$")
      endforeach()
      string(REPLACE ";" "|" patterns "${patterns}")
      list(FILTER files INCLUDE REGEX "${patterns}")
    endif()
  else()
    list(FILTER files EXCLUDE REGEX "^tensorhub/(testing|etcd|memory/cuda)/|/(etcd|prometheus|cuda)\\.ipp$")
  endif()
  set(folders)
  foreach(file IN LISTS files)
    get_filename_component(folder ${file} DIRECTORY)
    if(file MATCHES "/(catalog|codec|server)\\.ipp$") # long ones: units of their own
      set(folder ${file})
    endif()
    string(MAKE_C_IDENTIFIER ${folder} unit)
    list(APPEND folders ${unit})
    string(APPEND text_${unit} "#include \"${file}\"\n")
  endforeach()
  file(GLOB instantiations CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/instantiations/*.cpp)
  set(sources ${instantiations})
  list(REMOVE_DUPLICATES folders)
  foreach(unit IN LISTS folders)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/compiled/${name}/${unit}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "${text_${unit}}" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  add_library(tensorhub_${name} STATIC ${sources})
  add_library(TensorHub::${name} ALIAS tensorhub_${name})
  set_target_properties(tensorhub_${name} PROPERTIES EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(tensorhub_${name} PUBLIC TENSORHUB_COMPILED)
  target_link_libraries(tensorhub_${name} PUBLIC ${arg_LINK})
  if(PROJECT_IS_TOP_LEVEL)
    target_compile_options(tensorhub_${name}
                           PRIVATE $<TARGET_PROPERTY:tensorhub_development,INTERFACE_COMPILE_OPTIONS>)
  endif()
  if(TENSORHUB_SANITIZE AND NOT arg_OF)
    # The core is optimised where the tests are not: 79 s more to compile it (clang++, address), but the simulator's short
    # histories alone take 96 s less (user time, one run each, 2026-11-27).
    target_compile_options(tensorhub_${name} PRIVATE -O1)
  endif()
  set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPONENTS ${name})
  if(arg_OF)
    set_property(GLOBAL APPEND PROPERTY TENSORHUB_COMPILED_COMPONENTS ${arg_OF})
  endif()
endfunction()
