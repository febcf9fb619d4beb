# Debian's packages that every room may use.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(benchmark QUIET)
find_package(hwy REQUIRED)
# Kernels are compiled for AVX-512, AVX2, SSE4 and a plain loop. What lies between gains nothing and
# costs compile time.
set_property(TARGET hwy::hwy APPEND PROPERTY INTERFACE_COMPILE_DEFINITIONS
             "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)")
