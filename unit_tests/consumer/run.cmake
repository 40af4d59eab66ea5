# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Configures, builds and runs the consumer: KIND is install or subdirectory, SPOROS_SOURCE and SPOROS_BUILD are the
# project's folders, WORK is a folder to work in. What the project's own configure step found is passed on.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

load_cache(${SPOROS_BUILD} READ_WITH_PREFIX project_ CMAKE_GENERATOR CMAKE_BUILD_TYPE CMAKE_CXX_COMPILER CMAKE_C_COMPILER
           CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CXX_FLAGS CMAKE_PREFIX_PATH Kokkos_DIR KokkosKernels_DIR
           SPOROS_ENABLE_KOKKOSKERNELS)
set(settings)
foreach(name CMAKE_BUILD_TYPE CMAKE_CXX_COMPILER CMAKE_C_COMPILER CMAKE_CXX_COMPILER_LAUNCHER CMAKE_CXX_FLAGS Kokkos_DIR
             KokkosKernels_DIR)
  if(NOT "${project_${name}}" STREQUAL "" AND NOT "${project_${name}}" MATCHES "-NOTFOUND$")
    list(APPEND settings "-D${name}=${project_${name}}")
  endif()
endforeach()

file(REMOVE_RECURSE ${WORK}/prefix)
if(KIND STREQUAL "install")
  run(${CMAKE_COMMAND} --install ${SPOROS_BUILD} --prefix ${WORK}/prefix)
  list(PREPEND project_CMAKE_PREFIX_PATH ${WORK}/prefix)
else()
  # Without io, for debugging, for one instruction set: a configuration that nothing else builds.
  list(APPEND settings -DSPOROS_SOURCE_DIR=${SPOROS_SOURCE} -DSPOROS_ENABLE_IO=OFF -DCMAKE_BUILD_TYPE=Debug
       -DSPOROS_HIGHEST_HOST_LEVEL=baseline
       -DSPOROS_ENABLE_KOKKOSKERNELS=${project_SPOROS_ENABLE_KOKKOSKERNELS})
endif()
run(${CMAKE_COMMAND} -G ${project_CMAKE_GENERATOR} -S ${SPOROS_SOURCE}/unit_tests/consumer -B ${WORK}/build ${settings}
    "-DCMAKE_PREFIX_PATH=${project_CMAKE_PREFIX_PATH}")
run(${CMAKE_COMMAND} --build ${WORK}/build --target consumer)
run(${WORK}/build/consumer)
