# How this project declares its targets: sources are found by folder, tests and benchmarks by
# their file names (_test.cc, _bench.cc), so that adding a file is adding a file.

set(KVCACHE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
if(KVCACHE_WERROR)
  list(APPEND KVCACHE_WARNINGS -Werror)
endif()

# GCC 12 sees overlap in "text" + std::string at -O3 (gcc.gnu.org/bugzilla 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND
   CMAKE_BUILD_TYPE STREQUAL "Release")
  list(APPEND KVCACHE_WARNINGS -Wno-restrict)
endif()

function(kvcache_compile_options target)
  target_compile_options(${target} PRIVATE ${KVCACHE_WARNINGS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
endfunction()

# kvcache_sources(OUT layer...): the layers' sources, without tests and benchmarks.
function(kvcache_sources out)
  set(all)
  foreach(layer IN LISTS ARGN)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${layer}/*.cc)
    list(FILTER found EXCLUDE REGEX "_(test|bench)\\.cc$")
    list(APPEND all ${found})
  endforeach()
  set(${out} ${all} PARENT_SCOPE)
endfunction()

# kvcache_library(NAME LAYERS layer...)
function(kvcache_library name)
  cmake_parse_arguments(ARG "" "" "LAYERS" ${ARGN})
  kvcache_sources(sources ${ARG_LAYERS})
  add_library(${name} ${sources})
  add_library(kvcache::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${name} PUBLIC cxx_std_20)
  kvcache_compile_options(${name})
endfunction()

# kvcache_program(TARGET OUTPUT file-name LAYERS layer...)
function(kvcache_program name)
  cmake_parse_arguments(ARG "" "OUTPUT" "LAYERS" ${ARGN})
  kvcache_sources(sources ${ARG_LAYERS})
  add_executable(${name} ${sources})
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT})
  kvcache_compile_options(${name})
endfunction()

# kvcache_test(NAME LIBRARIES lib... SOURCES file...): one GoogleTest program, whose tests have its
# name as their label.
function(kvcache_test name)
  cmake_parse_arguments(ARG "" "" "LIBRARIES;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  kvcache_compile_options(${name})
  target_compile_definitions(${name} PRIVATE KVCACHE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name})
endfunction()
