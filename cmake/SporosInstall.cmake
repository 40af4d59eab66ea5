# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Installs the package that find_package(Sporos) reads.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Sporos)
configure_package_config_file(cmake/SporosConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/SporosConfig.cmake
                              INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/SporosConfigVersion.cmake COMPATIBILITY SameMajorVersion)

install(FILES ${PROJECT_BINARY_DIR}/include/Sporos_Version.hpp DESTINATION include/sporos)
install(EXPORT SporosTargets NAMESPACE Sporos:: DESTINATION ${package_folder})
install(FILES ${PROJECT_BINARY_DIR}/cmake/SporosConfig.cmake ${PROJECT_BINARY_DIR}/cmake/SporosConfigVersion.cmake
        DESTINATION ${package_folder})
if(SPOROS_ENABLE_NCCL)
  install(FILES cmake/FindNCCL.cmake DESTINATION ${package_folder})
endif()
