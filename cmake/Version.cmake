# Writes include/dba/version.h into the build tree at build time, so that the commit in it is that of the sources. The
# file is touched only when its content changes. Run with -P it does the writing itself.
if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git describe --always --dirty --abbrev=12 --exclude=*
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE DBA_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT DBA_COMMIT)
    set(DBA_COMMIT unknown)
  endif()
  string(REGEX MATCHALL "[0-9]+" parts ${VERSION})
  list(GET parts 0 DBA_VERSION_MAJOR)
  list(GET parts 1 DBA_VERSION_MINOR)
  list(GET parts 2 DBA_VERSION_PATCH)
  configure_file(${SOURCE}/include/dba/version.h.in ${OUTPUT} @ONLY)
  return()
endif()

set(DBA_VERSION_HEADER ${PROJECT_BINARY_DIR}/include/dba/version.h)
set(write_version ${CMAKE_COMMAND} -D SOURCE=${PROJECT_SOURCE_DIR} -D VERSION=${PROJECT_VERSION}
    -D OUTPUT=${DBA_VERSION_HEADER} -P ${CMAKE_CURRENT_LIST_FILE})
execute_process(COMMAND ${write_version} COMMAND_ERROR_IS_FATAL ANY)
add_custom_target(dba_version COMMAND ${write_version} BYPRODUCTS ${DBA_VERSION_HEADER} VERBATIM)
