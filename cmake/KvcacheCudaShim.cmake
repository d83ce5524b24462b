# The shim: a device for the tests of the CUDA backend, which runs kernels on the host
# (docs/design/cuda.md).

# What kernels are compiled with. The compiler calls a function before each access to memory, and the shim
# defines these functions: a program with kernels is never linked with a sanitizer's library.
set(KVCACHE_SHIM_KERNEL_OPTIONS "SHELL:-x c++" -fsanitize=thread --param=tsan-instrument-func-entry-exit=0
  -fsanitize=bounds,alignment,shift,integer-divide-by-zero -g -fno-math-errno -fno-exceptions
  -fno-optimize-sibling-calls -Wno-unknown-pragmas)

# kvcache_cuda_shim(OUT): compiles the shim and, for it, all kernels of src/backend/cuda. OUT lists the
# objects, as sources of a test program. It is empty in trees with a sanitizer, since its functions and the
# shim's have the same names, with compilers other than GCC, whose options differ, and in cross builds, whose tests
# are emulated.
function(kvcache_cuda_shim out)
  set(${out} "" PARENT_SCOPE)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize" OR NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CROSSCOMPILING)
    return()
  endif()
  find_package(Boost 1.81 REQUIRED COMPONENTS context)
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*_kernels.cu)
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX)
  add_library(kvcache_cuda_shim_kernels OBJECT ${kernels})
  kvcache_compile_options(kvcache_cuda_shim_kernels)
  target_compile_options(kvcache_cuda_shim_kernels PRIVATE ${KVCACHE_SHIM_KERNEL_OPTIONS})
  target_include_directories(kvcache_cuda_shim_kernels PRIVATE ${PROJECT_SOURCE_DIR}/include)

  kvcache_sources(sources backend/cuda/shim)
  add_library(kvcache_cuda_shim OBJECT ${sources})
  kvcache_compile_options(kvcache_cuda_shim)
  target_include_directories(kvcache_cuda_shim PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(kvcache_cuda_shim PRIVATE Boost::context)
  set(${out} $<TARGET_OBJECTS:kvcache_cuda_shim_kernels> $<TARGET_OBJECTS:kvcache_cuda_shim>
    PARENT_SCOPE)
endfunction()
