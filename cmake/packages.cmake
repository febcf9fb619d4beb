# Debian's packages that every room may use.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark QUIET)
find_package(hwy REQUIRED)
