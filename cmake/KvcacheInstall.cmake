# What `cmake --install` lays down: the library with its public headers and package files
# (component "library": all that find_package(kvcache) needs, nothing of the engine), and the
# command with the models that ship (component "command").

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvcache)

install(TARGETS kvcache EXPORT kvcacheTargets COMPONENT library
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvcache COMPONENT library
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT kvcacheTargets NAMESPACE kvcache:: COMPONENT library DESTINATION ${package_dir})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/kvcacheConfig.cmake.in
  ${PROJECT_BINARY_DIR}/kvcacheConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvcacheConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvcacheConfig.cmake
  ${PROJECT_BINARY_DIR}/kvcacheConfigVersion.cmake COMPONENT library DESTINATION ${package_dir})

if(KVCACHE_BUILD_ENGINE)
  install(TARGETS kvcache_cli COMPONENT command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/ COMPONENT command
    DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcache/models FILES_MATCHING PATTERN "*.gguf")
endif()
