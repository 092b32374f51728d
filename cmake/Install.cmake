include(CMakePackageConfigHelpers)
set(DBA_CMAKE_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/dba)

set(libraries libdba dba)
if(TARGET dba_cuda)
  list(APPEND libraries dba_cuda)
endif()
install(TARGETS ${libraries} EXPORT dbaTargets)
install(TARGETS dba_program)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/dba ${PROJECT_BINARY_DIR}/include/dba
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(EXPORT dbaTargets NAMESPACE dba:: DESTINATION ${DBA_CMAKE_FOLDER})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/dbaConfig.cmake.in ${PROJECT_BINARY_DIR}/cmake/dbaConfig.cmake
                              INSTALL_DESTINATION ${DBA_CMAKE_FOLDER})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/dbaConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/dbaConfig.cmake ${PROJECT_BINARY_DIR}/cmake/dbaConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindTorchWheel.cmake
        DESTINATION ${DBA_CMAKE_FOLDER})
# What `dba reproduce` trains.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/dba)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
