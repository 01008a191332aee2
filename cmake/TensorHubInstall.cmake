# Installs the headers and one export set per component; TensorHubConfig.cmake loads the components asked for.
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/TensorHub)
get_property(components GLOBAL PROPERTY TENSORHUB_COMPONENTS)
get_property(find_modules GLOBAL PROPERTY TENSORHUB_FIND_MODULES)
get_property(optional_packages GLOBAL PROPERTY TENSORHUB_OPTIONAL_PACKAGES)
get_property(include_folders GLOBAL PROPERTY TENSORHUB_INCLUDE_FOLDERS)

# What is under include/tensorhub is the core's, but for what belongs to an optional component: that is installed
# if the component is built.
get_property(component_headers GLOBAL PROPERTY TENSORHUB_COMPONENT_HEADERS)
set(left_out)
foreach(name IN ITEMS testing etcd.hpp etcd prometheus.hpp memory/cuda.hpp memory/cuda torch.hpp)
  if(NOT name IN_LIST component_headers)
    list(APPEND left_out REGEX "/include/tensorhub/${name}(/|$)" EXCLUDE)
  endif()
endforeach()
foreach(folder IN LISTS include_folders)
  install(
    DIRECTORY ${folder}/tensorhub
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING
    PATTERN "*.hpp"
    PATTERN "*.h"
    PATTERN "*.ipp"
    PATTERN "kernels" EXCLUDE ${left_out})
endforeach()
foreach(component IN LISTS components)
  install(TARGETS tensorhub_${component} EXPORT TensorHub_${component} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(
    EXPORT TensorHub_${component}
    NAMESPACE TensorHub::
    DESTINATION ${package_folder}
    FILE TensorHub_${component}.cmake)
endforeach()

configure_package_config_file(cmake/TensorHubConfig.cmake.in ${PROJECT_BINARY_DIR}/TensorHubConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TensorHubConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TensorHubConfig.cmake ${PROJECT_BINARY_DIR}/TensorHubConfigVersion.cmake
              cmake/FindZeroMQ.cmake cmake/FindxxHash.cmake cmake/FindSodium.cmake DESTINATION ${package_folder})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
foreach(module IN LISTS find_modules)
  install(FILES cmake/${module} DESTINATION ${package_folder})
endforeach()

# For C and what calls it: pkg-config finds the library where the file lies, so the installation may be moved.
if(TARGET tensorhub_c)
  set(pc_folder ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  foreach(variable libdir includedir)
    string(TOUPPER ${variable} upper)
    cmake_path(IS_ABSOLUTE CMAKE_INSTALL_${upper} is_absolute)
    set(pc_${variable} "${CMAKE_INSTALL_${upper}}")
    if(NOT is_absolute)
      string(PREPEND pc_${variable} "\${prefix}/")
    endif()
  endforeach()
  set(pc_prefix "${CMAKE_INSTALL_PREFIX}")
  cmake_path(IS_ABSOLUTE pc_folder is_absolute)
  if(NOT is_absolute)
    string(REGEX REPLACE "[^/]+" ".." pc_prefix "${pc_folder}")
    string(PREPEND pc_prefix "\${pcfiledir}/")
  endif()
  configure_file(cmake/tensorhub.pc.in ${PROJECT_BINARY_DIR}/tensorhub.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tensorhub.pc DESTINATION ${pc_folder})
endif()
