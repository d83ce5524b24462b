# Builds for Arm (aarch64) on another Debian machine: Debian's cross compiler, and a folder with the packages of the
# target, which tools/check/aarch64_sysroot.sh makes. qemu-user runs the programs; its environment variable QEMU_CPU
# chooses the processor.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(KVCACHE_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../../build/aarch64-sysroot CACHE PATH "The packages of the target")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KVCACHE_SYSROOT)
get_filename_component(CMAKE_SYSROOT ${KVCACHE_SYSROOT} ABSOLUTE)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${CMAKE_SYSROOT})
