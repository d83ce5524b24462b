# KVCACHE_CUDA: whether the library has the CUDA backend (docs/design/cuda.md).
#
#   on     needs nvcc 12 or newer. The program runs without a driver too.
#   off    none of it is compiled into the library.
#   auto   on where nvcc and the driver's library are both there, else off.
#
# KVCACHE_CUDA_LINKED says which it is.

set(KVCACHE_CUDA "auto" CACHE STRING "The CUDA backend in the library: auto, on or off")
set_property(CACHE KVCACHE_CUDA PROPERTY STRINGS auto on off)
# Devices that have kernels of their own; others, which are newer, compile those of the PTX when they are opened.
set(KVCACHE_CUDA_ARCHITECTURES 80 86 89 90 100 120 CACHE STRING "Compute capabilities of the kernels")
set(KVCACHE_CUDA_PTX 80 CACHE STRING "Compute capability of the PTX; empty: none")

set(KVCACHE_CUDA_LINKED OFF)
if(NOT KVCACHE_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "KVCACHE_CUDA is '${KVCACHE_CUDA}'; must be auto, on or off")
endif()
if(NOT KVCACHE_CUDA STREQUAL "off")
  find_program(KVCACHE_NVCC nvcc HINTS /usr/local/cuda/bin)
  find_library(KVCACHE_LIBCUDA NAMES libcuda.so.1)
  if(KVCACHE_CUDA STREQUAL "on" AND NOT KVCACHE_NVCC)
    message(FATAL_ERROR "KVCACHE_CUDA=on needs nvcc 12 or newer; set KVCACHE_NVCC to its path")
  endif()
  if(KVCACHE_NVCC AND (KVCACHE_CUDA STREQUAL "on" OR KVCACHE_LIBCUDA))
    set(KVCACHE_CUDA_LINKED ON)
  endif()
endif()

if(KVCACHE_CUDA_LINKED)
  execute_process(COMMAND ${KVCACHE_NVCC} --version OUTPUT_VARIABLE version)
  string(REGEX MATCH "release ([0-9]+)\\.[0-9]+" version "${version}")
  set(KVCACHE_NVCC_MAJOR ${CMAKE_MATCH_1})
  if(NOT KVCACHE_NVCC_MAJOR OR KVCACHE_NVCC_MAJOR LESS 12)
    message(FATAL_ERROR "${KVCACHE_NVCC} is '${version}'; KVCACHE_CUDA needs release 12 or newer")
  endif()
  execute_process(COMMAND ${KVCACHE_NVCC} --list-gpu-arch OUTPUT_VARIABLE known)
  set(KVCACHE_CUDA_FLAGS -std=c++20 --expt-relaxed-constexpr -Xptxas -v -I${CMAKE_SOURCE_DIR}/src
    -I${CMAKE_SOURCE_DIR}/include)
  if(KVCACHE_CUDA_PTX)
    list(APPEND KVCACHE_CUDA_FLAGS -gencode arch=compute_${KVCACHE_CUDA_PTX},code=compute_${KVCACHE_CUDA_PTX})
  endif()
  foreach(architecture IN LISTS KVCACHE_CUDA_ARCHITECTURES)
    if(known MATCHES "compute_${architecture}[\r\n]")
      list(APPEND KVCACHE_CUDA_FLAGS -gencode arch=compute_${architecture},code=sm_${architecture})
    endif()
  endforeach()
  message(STATUS "CUDA backend: ${version} of nvcc")
endif()

# kvcache_cuda_images(): compiles all kernels of src/backend/cuda and embeds them: kvcache_cuda_images, an object
# library with ProgramKernels() (src/backend/cuda/entry/program_kernels.h). A kernel that spills more registers than
# tools/gpu/spills.txt allows is an error; BUILD/cuda/NAME.registers.txt has the figures.
function(kvcache_cuda_images)
  set(root ${PROJECT_BINARY_DIR}/cuda)
  file(MAKE_DIRECTORY ${root})
  file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*_kernels.cu)
  list(FILTER kernels EXCLUDE REGEX "/shim/")
  set(images)
  set(assembly)
  set(declarations)
  set(list)
  foreach(kernel IN LISTS kernels)
    get_filename_component(name ${kernel} NAME_WE)
    set(image ${root}/${name}.fatbin)
    add_custom_command(OUTPUT ${image}
      COMMAND ${CMAKE_COMMAND} -D NVCC=${KVCACHE_NVCC} "-DFLAGS=${KVCACHE_CUDA_FLAGS}" -D SOURCE=${kernel}
        -D IMAGE=${image} -D BOUNDS=${PROJECT_SOURCE_DIR}/tools/gpu/spills.txt
        -P ${PROJECT_SOURCE_DIR}/cmake/cuda_image.cmake
      DEPENDS ${kernel} ${PROJECT_SOURCE_DIR}/cmake/cuda_image.cmake
      DEPFILE ${image}.d COMMENT "Compiling ${name}.cu for CUDA" VERBATIM)
    list(APPEND images ${image})
    string(APPEND assembly "    \".balign 64\\n\"\n    \"kvcache_image_${name}:\\n\"\n"
      "    \".incbin \\\"${image}\\\"\\n\"\n")
    string(APPEND declarations "extern const char kvcache_image_${name}[];\n")
    string(APPEND list "kvcache_image_${name}, ")
  endforeach()
  math(EXPR needed "${KVCACHE_NVCC_MAJOR} * 1000")
  file(CONFIGURE OUTPUT ${root}/program_kernels.cc @ONLY CONTENT
"// Made by cmake/KvcacheCuda.cmake.
#include \"backend/cuda/entry/program_kernels.h\"

__asm__(
    \".pushsection .rodata\\n\"
@assembly@    \".popsection\\n\");

extern \"C\" {
@declarations@}

namespace kvcache::cuda {

const KernelImages& ProgramKernels() {
  static const KernelImages kernels{{@list@}, @needed@};
  return kernels;
}

}  // namespace kvcache::cuda
")
  add_library(kvcache_cuda_images OBJECT ${root}/program_kernels.cc)
  set_source_files_properties(${root}/program_kernels.cc PROPERTIES OBJECT_DEPENDS "${images}")
  kvcache_compile_options(kvcache_cuda_images)
  target_include_directories(kvcache_cuda_images PRIVATE ${PROJECT_SOURCE_DIR}/include)
  if(BUILD_SHARED_LIBS)
    set_target_properties(kvcache_cuda_images PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
endfunction()
