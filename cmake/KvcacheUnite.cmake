# KVCACHE_UNITE: compiles several sources of a layer or of a test program at once, so that headers are read once
# for all of them. A build from nothing takes about half the time, and one after a change of one source a few
# seconds more. A source still includes what it uses, and names in anonymous namespaces are unique in
# their layer; builds without this option, such as the release build, check the former. A test has a
# namespace of its own, kvcache::NAME_test, so tests name their parts alike.

option(KVCACHE_UNITE "Compile several sources at once" OFF)

# Sources that stay alone: the filters of templates name their parts alike; the library of flags has many
# instantiations.
file(GLOB alike ${PROJECT_SOURCE_DIR}/src/chat_template/builtins/*_filters.cc)
set(KVCACHE_ALONE ${alike}
  ${PROJECT_SOURCE_DIR}/src/app/main.cc
  ${PROJECT_SOURCE_DIR}/src/app/flags/command_line.cc
  ${PROJECT_SOURCE_DIR}/src/chat_template/builtins/methods.cc
  ${PROJECT_SOURCE_DIR}/src/chat_template/builtins/functions.cc
  ${PROJECT_SOURCE_DIR}/src/chat_template/builtins/tests.cc)

# Layers whose sources stay alone: kernels include themselves once for each instruction set (foreach_target.h).
set(KVCACHE_LAYERS_ALONE backend)

# kvcache_unite(TARGET LAYER): unites the sources of the layer's target.
function(kvcache_unite target layer)
  if(NOT KVCACHE_UNITE OR layer IN_LIST KVCACHE_LAYERS_ALONE)
    return()
  endif()
  kvcache_unite_all(${target})
  set_source_files_properties(${KVCACHE_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# kvcache_unite_all(TARGET): unites the sources of the target.
function(kvcache_unite_all target)
  if(NOT KVCACHE_UNITE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 24)
  # A class of a source that has members of an unnamed namespace's types looks like one of a header.
  # A source's name may also be in a header that only another source includes.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
    $<$<CXX_COMPILER_ID:Clang>:-Wno-shadow>)
endfunction()
