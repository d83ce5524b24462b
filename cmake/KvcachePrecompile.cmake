# KVCACHE_PRECOMPILE_HEADERS: compiles the headers of libraries (std, JSON, GoogleTest) once instead
# of once per source. Saves a fifth of a build from nothing. A source still includes what it uses:
# builds without this option, such as the release build, fail otherwise. Of no use with ccache, which
# knows a source only by all that it includes.

option(KVCACHE_PRECOMPILE_HEADERS "Compile the headers of libraries once" OFF)

set(KVCACHE_STD_HEADERS <algorithm> <charconv> <filesystem> <functional> <map> <memory> <optional>
  <random> <set> <span> <string> <string_view> <variant> <vector>)

if(KVCACHE_PRECOMPILE_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND
   CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overflows in "text" + std::string (gcc.gnu.org/bugzilla 105651) and uninitialized
  # members in std::variant. With precompiled headers it reports what it sees inside libraries.
  add_compile_options(-Wno-array-bounds -Wno-maybe-uninitialized -Wno-restrict
    -Wno-stringop-overflow -Wno-stringop-overread)
endif()

# kvcache_precompile(TARGET NAME LIBRARIES lib... HEADERS <header>... OPTIONS option...): lets TARGET use
# precompiled std headers and HEADERS, which come from the libraries. All targets that give the same NAME
# share them, and are compiled with the same OPTIONS.
function(kvcache_precompile target name)
  if(NOT KVCACHE_PRECOMPILE_HEADERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "LIBRARIES;HEADERS;OPTIONS" ${ARGN})
  set(headers kvcache_${name}_headers)
  if(NOT TARGET ${headers})
    file(WRITE ${PROJECT_BINARY_DIR}/${headers}.cc "")
    add_library(${headers} OBJECT ${PROJECT_BINARY_DIR}/${headers}.cc)
    target_link_libraries(${headers} PRIVATE ${ARG_LIBRARIES})
    target_compile_options(${headers} PRIVATE ${ARG_OPTIONS})
    target_precompile_headers(${headers} PRIVATE ${KVCACHE_STD_HEADERS} ${ARG_HEADERS})
    set_target_properties(${headers} PROPERTIES
      POSITION_INDEPENDENT_CODE "${BUILD_SHARED_LIBS}")
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
endfunction()
