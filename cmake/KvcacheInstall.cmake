# The components of `cmake --install`:
#   library   kvcache with its public headers and package files, as find_package(kvcache) needs them
#   engine    kvcache::engine with its headers, for find_package(kvcache COMPONENTS engine)
#   command   the program, with the models that ship

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
  install(TARGETS kvcache_engine EXPORT kvcacheEngineTargets COMPONENT engine
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/kvcache_engine COMPONENT engine
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
  install(EXPORT kvcacheEngineTargets NAMESPACE kvcache:: COMPONENT engine
    DESTINATION ${package_dir})
  install(TARGETS kvcache_cli COMPONENT command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/ COMPONENT command
    DESTINATION ${CMAKE_INSTALL_DATADIR}/kvcache/models FILES_MATCHING PATTERN "*.gguf")
endif()
