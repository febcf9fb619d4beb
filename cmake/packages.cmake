# Debian's packages that every room may use.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(benchmark QUIET)
find_package(hwy REQUIRED)
# Kernels are compiled for AVX-512, AVX2, SSE4 and a plain loop, and on Arm for NEON. What lies
# between gains nothing and costs compile time. Releases after 1.0.3 have more of it. SVE is left
# out: GCC 12 crashes where arm_sve.h stands behind a precompiled header.
set(disabled HWY_SSSE3 HWY_AVX3_DL)
find_path(SHOAL_HIGHWAY_INCLUDE hwy/detect_targets.h REQUIRED)
set(more HWY_SSE2 HWY_AVX3_ZEN4 HWY_AVX3_SPR)
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  list(APPEND more HWY_SVE HWY_SVE2 HWY_SVE_256 HWY_SVE2_128)
endif()
foreach(name ${more})
  file(STRINGS ${SHOAL_HIGHWAY_INCLUDE}/hwy/detect_targets.h known REGEX "^#define ${name} ")
  if(known)
    list(APPEND disabled ${name})
  endif()
endforeach()
list(JOIN disabled "|" disabled)
set_property(TARGET hwy::hwy APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS
             "HWY_DISABLED_TARGETS=(${disabled})")
