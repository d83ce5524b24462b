# Functions that declare this project's targets. Sources are found by folder, tests and benchmarks
# by their file names (_test.cc, _bench.cc), so a new file needs no change of a list.

# Layers whose speed is not that of the model. The presets for development optimise them less, which takes three
# quarters of the time.
set(KVCACHE_COLD_LAYERS app app/serve chat_template convert dialect dialect/grammar gguf grammar inspect json model_store
    replay safetensors server)
set(KVCACHE_COLD_OPTIONS "" CACHE STRING "Further options of layers whose speed matters little")

set(KVCACHE_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion)
if(KVCACHE_WERROR)
  list(APPEND KVCACHE_WARNINGS -Werror)
endif()

# GCC 12 sees overlap in "text" + std::string at -O3 (gcc.gnu.org/bugzilla 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13 AND
   CMAKE_BUILD_TYPE STREQUAL "Release")
  list(APPEND KVCACHE_WARNINGS -Wno-restrict)
endif()

# kvcache_compile_options(TARGET): sets the options of a program or library that may see all of
# src/: tests, benchmarks, tools. kvcache_layer declares the layers themselves.
function(kvcache_compile_options target)
  target_compile_options(${target} PRIVATE ${KVCACHE_WARNINGS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
endfunction()

# kvcache_sources(OUT folder...): lists the sources of src/FOLDER, without tests and benchmarks.
function(kvcache_sources out)
  set(all)
  foreach(folder IN LISTS ARGN)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${folder}/*.cc)
    list(FILTER found EXCLUDE REGEX "_(test|bench)\\.cc$")
    list(APPEND all ${found})
  endforeach()
  set(${out} ${all} PARENT_SCOPE)
endfunction()

# kvcache_layer(NAME USES layer... LIBRARIES target... WITHOUT folder...)
#
# Declares src/NAME as a layer. Its sources find the public headers, their own folder and the
# folders in USES. Any other include fails to compile: each layer has an include root of its own,
# BUILD/include_roots/NAME, which holds nothing but a link to src/NAME.
#
# A folder of a layer can be a layer that sees more: the outer layer names it in WITHOUT, and "OUTER/FOLDER" is
# declared with OUTER in its USES. The outer layer's root has its headers too.
function(kvcache_layer name)
  cmake_parse_arguments(ARG "" "" "USES;LIBRARIES;WITHOUT" ${ARGN})
  string(REPLACE "/" "_" target kvcache_${name}_layer)
  set(roots ${name} ${ARG_USES})
  list(FILTER roots EXCLUDE REGEX "/")
  if(NOT name MATCHES "/")
    set(root ${PROJECT_BINARY_DIR}/include_roots/${name})
    file(MAKE_DIRECTORY ${root})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${name} ${root}/${name} SYMBOLIC)
  endif()

  kvcache_sources(sources ${name})
  foreach(folder IN LISTS ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "/src/${name}/${folder}/")
  endforeach()
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  foreach(layer IN LISTS roots)
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include_roots/${layer})
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARG_LIBRARIES})
  target_compile_options(${target} PRIVATE ${KVCACHE_WARNINGS})
  if(name IN_LIST KVCACHE_COLD_LAYERS)
    target_compile_options(${target} PRIVATE ${KVCACHE_COLD_OPTIONS})
  endif()
  if(BUILD_SHARED_LIBS)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  kvcache_unite(${target} ${name})
  if(nlohmann_json::nlohmann_json IN_LIST ARG_LIBRARIES)
    kvcache_precompile(${target} json
      LIBRARIES nlohmann_json::nlohmann_json HEADERS <nlohmann/json.hpp>)
  else()
    kvcache_precompile(${target} std)
  endif()
endfunction()

# kvcache_objects(OUT layer...): lists the object files of layers, as sources of a library or
# program.
function(kvcache_objects out)
  list(TRANSFORM ARGN REPLACE "/" "_" OUTPUT_VARIABLE layers)
  list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:kvcache_\\1_layer>" OUTPUT_VARIABLE objects)
  set(${out} ${objects} PARENT_SCOPE)
endfunction()

# kvcache_program_path(OUT TARGET): returns the path by which another program runs a program of this project: that of
# the program, or in a cross build of a script that calls the emulator.
function(kvcache_program_path out target)
  set(${out} $<TARGET_FILE:${target}> PARENT_SCOPE)
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
    set(launcher ${PROJECT_BINARY_DIR}/launchers/${target})
    file(GENERATE OUTPUT ${launcher} CONTENT "#!/bin/sh\nexec ${emulator} $<TARGET_FILE:${target}> \"$@\"\n"
      FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
    set(${out} ${launcher} PARENT_SCOPE)
  endif()
endfunction()

# kvcache_begin_programs(FOLDER): links src/program into each program of the folder and of those in it.
function(kvcache_begin_programs folder)
  kvcache_objects(objects program)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "EXECUTABLE")
      target_sources(${target} PRIVATE ${objects})
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS folders)
    kvcache_begin_programs(${subfolder})
  endforeach()
endfunction()

# kvcache_library(NAME LAYERS layer...): declares a library of layers, with the public headers.
function(kvcache_library name)
  cmake_parse_arguments(ARG "" "" "LAYERS" ${ARGN})
  kvcache_objects(objects ${ARG_LAYERS})
  add_library(${name} ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  add_library(kvcache::${name} ALIAS ${name})
  target_include_directories(${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_compile_features(${name} PUBLIC cxx_std_20)
endfunction()

# The presets do not optimise the tests' own code, which takes three fifths of the time, unless they compute what
# they expect: those of kernels would take three times as long. Sanitizers check the code that is tested: checking
# the tests too would take longer to compile than all of the rest.
set(KVCACHE_TEST_OPTIONS "" CACHE STRING "Further options of the tests' sources")
set(KVCACHE_COMPUTING_TEST_OPTIONS "${KVCACHE_TEST_OPTIONS}" CACHE STRING
  "Further options of the sources of tests that compute what they expect")
set(KVCACHE_COMPUTING_TESTS backend_tests cache_tests chat_template_structure convert_tests cuda_tests exactness_checks
  fault_checks grammar_tests model_checks replay_tests scheduler_checks speculation_tests store_tests story_checks
  tensor_tests tokenizer_properties tokenizer_tests)

# kvcache_test(NAME [SUITES] LIBRARIES lib... SOURCES file...): declares a GoogleTest program. Its tests have
# its name as their label. Each test of ctest is one of the program's tests, in a process of its own; with SUITES
# it is a suite, for many tests that are as short as the start of a process, or that share what takes long to make.
function(kvcache_test name)
  cmake_parse_arguments(ARG "SUITES" "" "LIBRARIES;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES} $<TARGET_OBJECTS:kvcache_test_main>)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gmock)
  kvcache_compile_options(${name})
  target_compile_definitions(${name} PRIVATE KVCACHE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set(options ${KVCACHE_TEST_OPTIONS})
  set(headers test)
  if(name IN_LIST KVCACHE_COMPUTING_TESTS)
    set(options ${KVCACHE_COMPUTING_TEST_OPTIONS})
    if(NOT "${options}" STREQUAL "${KVCACHE_TEST_OPTIONS}")
      set(headers computing_test)
    endif()
  endif()
  target_compile_options(${name} PRIVATE ${options})
  kvcache_unite_all(${name})
  # Tests of kernels include themselves once for each instruction set, as kernels do.
  set(kernels ${ARG_SOURCES})
  list(FILTER kernels INCLUDE REGEX "/(hadamard_test)\\.cc$")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  kvcache_precompile(${name} ${headers}
    LIBRARIES GTest::gtest HEADERS <gtest/gtest.h> OPTIONS ${options})
  if(ARG_SUITES)
    kvcache_list_suites(${name})
  else()
    gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES LABELS ${name})
  endif()
endfunction()

# kvcache_list_suites(NAME): makes a test of ctest of each suite, whenever the program is built.
function(kvcache_list_suites name)
  set(tests ${CMAKE_CURRENT_BINARY_DIR}/${name}_suites.cmake)
  set(program ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:${name}>)
  add_custom_command(TARGET ${name} POST_BUILD BYPRODUCTS ${tests}
    COMMAND ${CMAKE_COMMAND} -D "PROGRAM=${program}" -D LABEL=${name}
      -D FOLDER=${CMAKE_CURRENT_BINARY_DIR} -D FILE=${tests} -P ${PROJECT_SOURCE_DIR}/cmake/list_suites.cmake
    VERBATIM)
  set(include ${CMAKE_CURRENT_BINARY_DIR}/${name}_include.cmake)
  file(WRITE ${include}
    "if(EXISTS ${tests})\n  include(${tests})\nelse()\n  add_test(${name}_NOT_BUILT ${name}_NOT_BUILT)\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include})
endfunction()
