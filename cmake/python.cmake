# The Python whose PyTorch the tests of python/ and of its page use: the one that SHOAL_PYTHON names, that of tools/setup_python.sh where
# it has been run, else python3. `shoal_python` is its path. SHOAL_HAS_PYTHON_TORCH: it has numpy, its own headers and the whole of the Torch
# that this build links, so the extension module of python/ is built for it.
find_program(python3 python3 NO_CACHE REQUIRED)
set(SHOAL_PYTHON "" CACHE FILEPATH "The Python of the tests of python/; empty: that of tools/setup_python.sh, else python3")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/.venv-python/shoal-setup.sha256)
if(SHOAL_PYTHON AND NOT SHOAL_PYTHON STREQUAL "${python3}") # older build trees hold the python3 that was found here
  set(shoal_python ${SHOAL_PYTHON})
elseif(EXISTS ${CMAKE_SOURCE_DIR}/.venv-python/shoal-setup.sha256)
  set(shoal_python ${CMAKE_SOURCE_DIR}/.venv-python/bin/python)
else()
  set(shoal_python ${python3})
endif()

# Packages are looked for and not imported, because importing Torch takes seconds.
execute_process(
  COMMAND ${shoal_python} -c "
import importlib.util, os, sysconfig
include = sysconfig.get_path('include')
found = [importlib.util.find_spec(name) for name in ('torch', 'numpy', 'typing_extensions')]
if all(found) and os.path.exists(os.path.join(include, 'Python.h')):
    print(os.path.realpath(os.path.dirname(found[0].origin)), include, sysconfig.get_config_var('EXT_SUFFIX'), sep=';', end='')"
  OUTPUT_VARIABLE python_torch ERROR_QUIET)
file(REAL_PATH ${SHOAL_TORCH} torch_folder)
list(POP_FRONT python_torch python_torch_folder SHOAL_PYTHON_INCLUDE SHOAL_PYTHON_SUFFIX)
if(python_torch_folder STREQUAL torch_folder AND NOT SHOAL_SANITIZE)
  set(SHOAL_HAS_PYTHON_TORCH ON)
  set(SHOAL_PYTHON_OUTPUT ${CMAKE_BINARY_DIR}/python/shoal)
  message(STATUS "PyTorch backend: built for ${shoal_python}")
else()
  set(SHOAL_HAS_PYTHON_TORCH OFF)
  message(STATUS "PyTorch backend: not built, because ${shoal_python} cannot import that Torch, or numpy (tools/setup_python.sh), or there are sanitizers")
endif()
