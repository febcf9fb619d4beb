# Language, warnings, sanitizers, output folders. No -march: what a processor can do is found out at run time.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_VISIBILITY_PRESET default)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -g1: line tables, so that a stack trace names its lines; with sanitizers too, where -g takes a
# quarter of the compiler's time. There -Og also takes it less than -O1 does: a fifth under
# ThreadSanitizer, a third under AddressSanitizer.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
if(SHOAL_SANITIZE)
  set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")
else()
  set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g")
endif()

set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
# An installed program finds its rooms beside it; cmake/torch.cmake adds where Torch is.
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")

find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE)
  # base_dir makes two checkouts share the cache, and the wheel of python/ find the objects of this
  # build. The inode cache remembers what a file hashed to: without it ccache reads the precompiled
  # headers (400 MB with LibTorch's) anew for every source, half a second to a second each.
  cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH repository)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${repository}
      CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1 CCACHE_SLOPPINESS=time_macros,pch_defines
      ${SHOAL_CCACHE})
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter -Wno-sign-compare -Wno-missing-field-initializers)
# On the compiler that the checks run with every build holds to them, so that `make check` and `make test` share one build tree. Another
# compiler's new warnings stop nobody from building.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set(shoal_werror_default ON)
else()
  set(shoal_werror_default OFF)
endif()
option(SHOAL_WERROR "Compiler warnings are errors" ${shoal_werror_default})
if(SHOAL_WERROR)
  add_compile_options(-Werror)
endif()
# GCC joins a product and a sum into one rounding on processors that all can do it. On x86-64 some
# cannot, so only kernels that ask for it by name have it: here other processors do the same, and
# plain loops have the bits that they have there.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  add_compile_options(-ffp-contract=off)
endif()
if(SHOAL_SANITIZE)
  add_compile_options(-fsanitize=${SHOAL_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${SHOAL_SANITIZE})
endif()
