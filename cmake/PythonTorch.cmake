# Built by pip (SKBUILD): the torch that the package will run with is the one in the environment that pip installs
# into. With build isolation pip hides that environment from imports, but not from an interpreter that ignores
# PYTHONPATH (-I).
if(NOT SKBUILD OR DBA_PYTHON OR DEFINED ENV{DBA_PYTHON} OR DBA_TORCH_PATH OR DEFINED ENV{DBA_TORCH_PATH})
  return()
endif()
execute_process(
  COMMAND ${Python_EXECUTABLE} -I -c
    "import importlib.util, os; s = importlib.util.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
  OUTPUT_VARIABLE DBA_TORCH_PATH OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT DBA_TORCH_PATH)
  message(FATAL_ERROR
    "dba is built against the torch it will run with, and ${Python_EXECUTABLE} has none. Install torch 2.11 or newer "
    "first. Where it is installed, but the build is isolated from it (uv, build), use --no-build-isolation, or name "
    "torch's folder with the environment variable DBA_TORCH_PATH.")
endif()
