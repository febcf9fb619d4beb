# `cmake --install` makes a CMake package of the rooms: find_package(shoal) in another project gives
# shoal::<room> for each of them ("shoal::parallel_recipe" for parallel/recipe). Headers that need
# a library which only the rooms' own sources use are left out, and those that are bodies of kernels.
include(CMakePackageConfigHelpers)
set(package lib/cmake/shoal)
install(
  DIRECTORY ${PROJECT_SOURCE_DIR}/src/shoal DESTINATION include
  FILES_MATCHING PATTERN "*.h"
  PATTERN "*-inl.h" EXCLUDE
  PATTERN "fold_kernel.h" EXCLUDE
  PATTERN "codec_kernel.h" EXCLUDE
  PATTERN "json_fields.h" EXCLUDE
  PATTERN "strict_json.h" EXCLUDE
  PATTERN "mpi_compat.h" EXCLUDE)
install(EXPORT shoal-rooms NAMESPACE shoal:: DESTINATION ${package})
if(SHOAL_TORCH_ROOMS)
  install(EXPORT shoal-torch-rooms NAMESPACE shoal:: DESTINATION ${package})
  list(TRANSFORM shoal_torch_rooms PREPEND "shoal::" OUTPUT_VARIABLE SHOAL_PACKAGE_TORCH_ROOMS)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/shoal-config.cmake.in shoal-config.cmake
                              INSTALL_DESTINATION ${package} NO_SET_AND_CHECK_MACRO)
# The interfaces may change with every version below 1.0.
write_basic_package_version_file(shoal-config-version.cmake COMPATIBILITY ExactVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/shoal-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/shoal-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/torch_targets.cmake DESTINATION ${package})
