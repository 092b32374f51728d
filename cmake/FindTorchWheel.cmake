# Finds LibTorch inside an installed Python package `torch`, without the package's own CMake files: those refuse where
# the wheel was made for CUDA and no CUDA toolkit is installed, although linking needs none.
#
# Looks, in this order, at
#   DBA_TORCH_PATH  the package's folder, the one that holds include/ and lib/ (variable or environment)
#   DBA_PYTHON      a Python interpreter that has torch (variable or environment)
#   TorchWheel_HINT a package folder that a caller suggests
#   .venv/bin/python of the project, then python3
#
# Sets TorchWheel_VERSION, TorchWheel_PATH, TorchWheel_CUDA_VERSION (empty for a CPU wheel), TorchWheel_PYTHON (the
# interpreter that was asked, if one was) and TorchWheel_LIBRARY_FOLDERS (for run-time search paths), and defines
#   torch::torch   everything a program needs; torch::c10, torch::torch_cpu, torch::torch_lib
#   torch::openmp  the OpenMP runtime that torch uses
#   torch::cuda    torch_cuda, c10_cuda and the wheel's CUDA runtime, where the wheel has them

function(_torch_wheel_ask_python python result)
  # find_spec does not import torch, which would take seconds.
  execute_process(
    COMMAND ${python} -c "import importlib.util, os; s = importlib.util.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
    OUTPUT_VARIABLE path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    set(path "")
  endif()
  set(${result} "${path}" PARENT_SCOPE)
endfunction()

foreach(name DBA_TORCH_PATH DBA_PYTHON)
  if(NOT ${name} AND DEFINED ENV{${name}})
    set(${name} $ENV{${name}})
  endif()
endforeach()

set(TorchWheel_PYTHON "")
if(DBA_TORCH_PATH)
  set(TorchWheel_PATH ${DBA_TORCH_PATH})
  set(_torch_wheel_asked "DBA_TORCH_PATH=${DBA_TORCH_PATH}")
elseif(DBA_PYTHON)
  set(TorchWheel_PYTHON ${DBA_PYTHON})
  set(_torch_wheel_asked "DBA_PYTHON=${DBA_PYTHON}")
elseif(TorchWheel_HINT AND EXISTS ${TorchWheel_HINT}/version.py)
  set(TorchWheel_PATH ${TorchWheel_HINT})
  set(_torch_wheel_asked ${TorchWheel_HINT})
else()
  set(TorchWheel_PYTHON python3)
  if(EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
    set(TorchWheel_PYTHON ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  endif()
  set(_torch_wheel_asked ${TorchWheel_PYTHON})
endif()
if(TorchWheel_PYTHON)
  _torch_wheel_ask_python(${TorchWheel_PYTHON} TorchWheel_PATH)
endif()

set(TorchWheel_VERSION "")
set(TorchWheel_CUDA_VERSION "")
if(TorchWheel_PATH AND EXISTS ${TorchWheel_PATH}/version.py)
  file(STRINGS ${TorchWheel_PATH}/version.py _torch_wheel_lines)
  foreach(_line IN LISTS _torch_wheel_lines)
    if(_line MATCHES "^__version__ *= *'([0-9.]+)")
      set(TorchWheel_VERSION ${CMAKE_MATCH_1})
    elseif(_line MATCHES "^cuda.*= *'([0-9.]+)'")
      set(TorchWheel_CUDA_VERSION ${CMAKE_MATCH_1})
    endif()
  endforeach()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TorchWheel
  REQUIRED_VARS TorchWheel_PATH TorchWheel_VERSION
  VERSION_VAR TorchWheel_VERSION
  REASON_FAILURE_MESSAGE
    "No usable torch at ${_torch_wheel_asked}. Name a Python that has torch with DBA_PYTHON, or its torch folder with DBA_TORCH_PATH.")

if(TorchWheel_FOUND)
  # The CUDA runtime lies in a sibling package.
  get_filename_component(_torch_wheel_site ${TorchWheel_PATH} DIRECTORY)
  file(GLOB _torch_wheel_cudart ${_torch_wheel_site}/nvidia/*/lib/libcudart.so.*)
  set(TorchWheel_LIBRARY_FOLDERS ${TorchWheel_PATH}/lib)
  if(_torch_wheel_cudart)
    list(GET _torch_wheel_cudart 0 _torch_wheel_cudart)
    get_filename_component(_torch_wheel_folder ${_torch_wheel_cudart} DIRECTORY)
    list(APPEND TorchWheel_LIBRARY_FOLDERS ${_torch_wheel_folder})
  endif()
endif()

if(TorchWheel_FOUND AND NOT TARGET torch::torch)
  function(_torch_wheel_library name file)
    add_library(torch::${name} SHARED IMPORTED)
    set_target_properties(torch::${name} PROPERTIES IMPORTED_LOCATION ${file} IMPORTED_NO_SONAME OFF)
  endfunction()
  _torch_wheel_library(c10 ${TorchWheel_PATH}/lib/libc10.so)
  _torch_wheel_library(torch_cpu ${TorchWheel_PATH}/lib/libtorch_cpu.so)
  _torch_wheel_library(torch_lib ${TorchWheel_PATH}/lib/libtorch.so)

  add_library(torch::torch INTERFACE IMPORTED)
  target_include_directories(torch::torch SYSTEM INTERFACE
    ${TorchWheel_PATH}/include ${TorchWheel_PATH}/include/torch/csrc/api/include)
  # The wheel's fmt headers are used without its compiled part.
  target_compile_definitions(torch::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 FMT_HEADER_ONLY)
  # libtorch.so holds no symbols, only the dependency on libtorch_cuda.so: a linker that drops "unneeded" libraries
  # (Ubuntu's does by default) would drop CUDA with it.
  target_link_options(torch::torch INTERFACE LINKER:--no-as-needed)
  # libstdc++ stands before torch: the wheel exports its own copies of std::filesystem functions, which crash when a
  # program's calls land in them. By its file name, because a process may hold one libstdc++ alone: on one machine -lstdc++
  # found the archive, libdba.so had streams and locales of its own, and a message with a number in it crashed in them.
  target_link_libraries(torch::torch INTERFACE -l:libstdc++.so.6 torch::torch_lib torch::torch_cpu torch::c10)

  # A process should run one OpenMP runtime: the wheel's own, where it brings one.
  add_library(torch::openmp INTERFACE IMPORTED)
  file(GLOB _torch_wheel_gomp ${TorchWheel_PATH}/lib/libgomp*.so* ${TorchWheel_PATH}.libs/libgomp*.so*)
  if(_torch_wheel_gomp)
    list(GET _torch_wheel_gomp 0 _torch_wheel_gomp)
    _torch_wheel_library(gomp ${_torch_wheel_gomp})
    target_link_libraries(torch::openmp INTERFACE torch::gomp)
  else()
    target_link_libraries(torch::openmp INTERFACE gomp)
  endif()

  if(EXISTS ${TorchWheel_PATH}/lib/libtorch_cuda.so)
    _torch_wheel_library(torch_cuda ${TorchWheel_PATH}/lib/libtorch_cuda.so)
    _torch_wheel_library(c10_cuda ${TorchWheel_PATH}/lib/libc10_cuda.so)
    add_library(torch::cuda INTERFACE IMPORTED)
    target_link_libraries(torch::cuda INTERFACE torch::torch_cuda torch::c10_cuda torch::torch)
    if(_torch_wheel_cudart)
      _torch_wheel_library(cudart ${_torch_wheel_cudart})
      target_link_libraries(torch::cuda INTERFACE torch::cudart)
    endif()
  endif()
endif()
