# What the Python package needs of the build. A file beside the libraries says what they were built with; the package
# compares it with what runs.
file(CONFIGURE OUTPUT ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/dba_built_with.json @ONLY CONTENT
  [[{"version": "@PROJECT_VERSION@", "torch": "@TorchWheel_VERSION@", "cuda": "@TorchWheel_CUDA_VERSION@"}]])
if(NOT SKBUILD)
  return()
endif()

# Built by pip, libraries and program are installed into the package, without paths of this machine: torch is loaded
# before the libraries, and the command `dba` tells the program where it is.
set(package_targets libdba dba_program)
if(TARGET dba_cuda)
  list(APPEND package_targets dba_cuda)
endif()
add_custom_target(python_package DEPENDS ${package_targets})
foreach(target IN LISTS package_targets)
  # Versioned names are symbolic links, which a wheel cannot hold.
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  # dba/bin and dba/lib, and torch where it stands beside dba in one environment.
  set_property(TARGET ${target} PROPERTY INSTALL_RPATH $ORIGIN $ORIGIN/../lib $ORIGIN/../../torch/lib
                                                       $ORIGIN/../../torch.libs)
endforeach()
install(TARGETS ${package_targets} LIBRARY DESTINATION dba/lib COMPONENT python RUNTIME DESTINATION dba/bin
                                           COMPONENT python)
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/dba_built_with.json DESTINATION dba/lib COMPONENT python)
# The libraries that are neither torch's nor every system's come along.
find_package(yaml-cpp REQUIRED)
get_target_property(yaml_type yaml-cpp TYPE)
if(yaml_type STREQUAL SHARED_LIBRARY)
  install(FILES $<TARGET_FILE:yaml-cpp> DESTINATION dba/lib COMPONENT python RENAME $<TARGET_SONAME_FILE_NAME:yaml-cpp>)
endif()
# FindPNG names libpng.so, a link to a file such as libpng16.so.16.39.0, which programs load as libpng16.so.16. The zlib
# it needs is every system's.
find_package(PNG 1.6 REQUIRED)
get_target_property(png_link PNG::PNG LOCATION)
file(REAL_PATH ${png_link} png_library)
if(png_library MATCHES "/(libpng[0-9]+[.]so[.][0-9]+)[^/]*$")
  install(FILES ${png_library} DESTINATION dba/lib COMPONENT python RENAME ${CMAKE_MATCH_1})
elseif(NOT png_library MATCHES "[.]a$")
  message(FATAL_ERROR "The wheel takes libpng along, and ${png_library} is not named libpngNN.so.NN")
endif()
