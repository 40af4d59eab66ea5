# SPDX-FileCopyrightText: The Sporos authors
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# How the parts of the library are declared.

configure_file(${PROJECT_SOURCE_DIR}/cmake/Sporos_Version.hpp.in ${PROJECT_BINARY_DIR}/include/Sporos_Version.hpp @ONLY)

# What every target of the project is compiled with. It is not part of the exported interface.
function(sporos_compile_options target)
  set_target_properties(${target} PROPERTIES CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
                                             POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE -Wall -Wextra)
  # nvcc writes line directives of its own, which are not standard either.
  if(NOT SPOROS_BACKEND STREQUAL "CUDA")
    target_compile_options(${target} PRIVATE -Wpedantic)
  endif()
  if(SPOROS_ENABLE_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()

# sporos_add_part(<name> <dependency>...): the library Sporos::<name> from <name>/src, header-only while it has no source.
function(sporos_add_part name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp ${CMAKE_CURRENT_SOURCE_DIR}/src/impl/*.cpp)
  if(sources)
    add_library(sporos_${name} ${sources})
    set(scope PUBLIC)
    sporos_compile_options(sporos_${name})
  else()
    add_library(sporos_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(Sporos::${name} ALIAS sporos_${name})
  set_target_properties(sporos_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(sporos_${name} ${scope} cxx_std_20)
  target_include_directories(sporos_${name} ${scope} $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>
                                                     $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
                                                     $<INSTALL_INTERFACE:include/sporos>)
  target_link_libraries(sporos_${name} ${scope} ${ARGN})
  install(DIRECTORY src/ DESTINATION include/sporos FILES_MATCHING PATTERN "*.hpp")
  install(TARGETS sporos_${name} EXPORT SporosTargets)
endfunction()

# The option that keeps a device compiler from compiling for the device, too
function(sporos_host_only_options variable)
  get_filename_component(compiler "${CMAKE_CXX_COMPILER}" NAME)
  if(compiler MATCHES "nvcc_wrapper")
    set(${variable} --host-only PARENT_SCOPE)
  elseif(compiler MATCHES "hipcc")
    set(${variable} -x c++ PARENT_SCOPE)
  else()
    set(${variable} PARENT_SCOPE)
  endif()
endfunction()

# sporos_host_only(<source>...): these sources contain no device code, and something that a device compiler chokes on.
function(sporos_host_only)
  sporos_host_only_options(options)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()

# sporos_add_host_levels(<target> <source>...): compiles the sources once for each instruction set into <target>, which
# chooses among them at run time, for distributions compile for the oldest processor. SPOROS_LEVEL is the namespace of
# the level; a function outside it could replace another level's at link time, so a test reads the objects' symbols.
function(sporos_add_host_levels target)
  if(NOT ARGN)
    return()
  endif()
  set(levels baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    list(APPEND levels x86_64_v3 x86_64_v4 x86_64_v4_bf16)
    list(FIND levels "${SPOROS_HIGHEST_HOST_LEVEL}" highest)
    math(EXPR count "${highest} + 1")
    list(SUBLIST levels 0 ${count} levels)
    target_compile_definitions(${target} PUBLIC SPOROS_HIGHEST_HOST_LEVEL=${highest})
    set(x86_64_v3_options -march=x86-64-v3)
    set(x86_64_v4_options -march=x86-64-v4)
    set(x86_64_v4_bf16_options -march=x86-64-v4 -mavx512bf16)
    if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")  # which halves even explicit 64-byte vectors otherwise
      list(APPEND x86_64_v4_options -mprefer-vector-width=512)
      list(APPEND x86_64_v4_bf16_options -mprefer-vector-width=512)
    endif()
  endif()
  list(GET levels -1 highest_level)
  sporos_host_only_options(host_only)
  set(objects)
  foreach(level IN LISTS levels)
    set(library ${target}_${level})
    add_library(${library} OBJECT ${ARGN})
    sporos_compile_options(${library})
    target_compile_definitions(${library} PRIVATE SPOROS_LEVEL=${level})
    # At -O0 they would be twenty times slower, in Debug builds too. Nobody asks for errno or floating-point traps, which
    # would keep loops with square roots and comparisons from becoming vectors.
    target_compile_options(${library} PRIVATE ${host_only} -fno-math-errno -fno-trapping-math $<$<CONFIG:Release>:-O3> $<$<NOT:$<CONFIG:Release>>:-O2> ${${level}_options})
    # Checks in every access take ten times as long to compile: minutes a file. One level has them, the highest, and not
    # those of null pointers, where the address sanitizer stops anyway, and of alignment: these two take half of that.
    if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=")
      if(level STREQUAL highest_level)
        target_compile_options(${library} PRIVATE -O1 -g0 -fno-sanitize=null,alignment)
      else()
        target_compile_options(${library} PRIVATE -fno-sanitize=all)
      endif()
    endif()
    target_include_directories(${library} PRIVATE ${PROJECT_SOURCE_DIR}/core/src ${CMAKE_CURRENT_SOURCE_DIR}/src
                                                  ${PROJECT_BINARY_DIR}/include)
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:${library}>)
    list(APPEND objects ${level}=$<JOIN:$<TARGET_OBJECTS:${library}>,$<COMMA>>)
  endforeach()
  set_property(GLOBAL APPEND PROPERTY SPOROS_LEVEL_OBJECTS ${objects})
endfunction()
