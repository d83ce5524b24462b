# KVCACHE_CPU_TARGETS: the instruction sets that the kernels are compiled for.
#
#   all      AVX3_DL, AVX3, AVX2 and the portable one; the library chooses at run time. For
#            installing, benchmarks and CI.
#   native   the best one of this machine and the portable one, in about half the build time. For
#            developing. Such a build runs on other machines too; if they lack the instruction set,
#            it uses the portable kernels.
#
# The choice is a definition for every source of the project, since all files that include Highway
# have to agree (src/backend/cpu/simd/targets.h). Needs the target hwy::hwy.

set(KVCACHE_CPU_TARGETS "all" CACHE STRING "Instruction sets of the kernels: all or native")
set_property(CACHE KVCACHE_CPU_TARGETS PROPERTY STRINGS all native)

# kvcache_detect_native_target(OUT): Highway's constant for this machine's best instruction set.
function(kvcache_detect_native_target out)
  try_run(exit_code compiled
    ${CMAKE_BINARY_DIR}/native_target
    ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/native_target.cc
    LINK_LIBRARIES hwy::hwy
    COMPILE_OUTPUT_VARIABLE compile_output
    RUN_OUTPUT_VARIABLE name)
  if(NOT compiled OR NOT exit_code EQUAL 0)
    message(FATAL_ERROR "KVCACHE_CPU_TARGETS=native: cannot detect this machine's instruction set; "
      "set KVCACHE_CPU_TARGETS=all\n${compile_output}")
  endif()
  string(STRIP "${name}" name)
  set(${out} ${name} PARENT_SCOPE)
endfunction()

if(KVCACHE_CPU_TARGETS STREQUAL "native")
  if(CMAKE_CROSSCOMPILING)
    message(FATAL_ERROR "KVCACHE_CPU_TARGETS=native: this is a cross build, which cannot detect the "
      "target machine's instruction set; set KVCACHE_CPU_TARGETS=all")
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT KVCACHE_NATIVE_TARGET)
    kvcache_detect_native_target(target)
    set(KVCACHE_NATIVE_TARGET ${target} CACHE INTERNAL "Highway's constant for this machine")
    message(STATUS "Kernels: ${target} and the portable instruction set")
  endif()
  if(KVCACHE_NATIVE_TARGET)
    add_compile_definitions(KVCACHE_NATIVE_TARGET=${KVCACHE_NATIVE_TARGET})
  endif()
elseif(NOT KVCACHE_CPU_TARGETS STREQUAL "all")
  message(FATAL_ERROR "KVCACHE_CPU_TARGETS is '${KVCACHE_CPU_TARGETS}'; must be all or native")
endif()
