# LibTorch, in the folder SHOAL_TORCH, as two imported libraries, linked directly: libtorch.so would
# pull in all of CUDA, and find_package(Torch) asks for a CUDA toolkit with the wheel that PyPI
# serves. The build and the installed package (shoal-config.cmake) both use this file.
if(NOT EXISTS ${SHOAL_TORCH}/include/ATen/core/Tensor.h)
  message(FATAL_ERROR "No Torch at '${SHOAL_TORCH}' (looked for include/ATen/core/Tensor.h). In Shoal's own tree run tools/setup.sh; elsewhere name one with -DSHOAL_TORCH=<dir>.")
endif()
# Which classes a header describes changes with every version. The rooms and programs are tested with this one; python/ alone takes
# newer ones too (SHOAL_NEWER_TORCH).
file(STRINGS ${SHOAL_TORCH}/include/torch/headeronly/version.h shoal_torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE "[^0-9;]" "" shoal_torch_version "${shoal_torch_version}")
string(REPLACE ";" "." shoal_torch_version "${shoal_torch_version}")
if(NOT shoal_torch_version VERSION_EQUAL 2.11 AND NOT (SHOAL_NEWER_TORCH AND shoal_torch_version VERSION_GREATER 2.11))
  message(FATAL_ERROR "Torch at ${SHOAL_TORCH} is version ${shoal_torch_version}; Shoal is built against 2.11.")
endif()
message(STATUS "Torch: ${SHOAL_TORCH}")

foreach(part c10 torch_cpu)
  add_library(torch::${part} SHARED IMPORTED)
  set_target_properties(torch::${part} PROPERTIES IMPORTED_LOCATION ${SHOAL_TORCH}/lib/lib${part}.so IMPORTED_NO_SONAME OFF)
endforeach()
# Behind every other include folder: the wheel carries its own fmt, protobuf and more, which must not shadow Debian's.
target_compile_options(torch::c10 INTERFACE "SHELL:-idirafter ${SHOAL_TORCH}/include" "SHELL:-idirafter ${SHOAL_TORCH}/include/torch/csrc/api/include")
# NDEBUG in every build type: the wheel was built with it, and classes in its headers (at::RecordFunction) have another layout without.
target_compile_definitions(torch::c10 INTERFACE NDEBUG USE_DISTRIBUTED USE_C10D)
# LibTorch's parallel loops (ATen/Parallel.h) are compiled into those who use them, and are serial
# without OpenMP. Both must use one OpenMP, so that at::set_num_threads counts for all loops: the one
# that LibTorch brings, else the compiler's.
target_compile_options(torch::c10 INTERFACE -fopenmp)
if(EXISTS ${SHOAL_TORCH}/lib/libgomp.so.1)
  target_link_libraries(torch::c10 INTERFACE ${SHOAL_TORCH}/lib/libgomp.so.1)
else()
  target_link_options(torch::c10 INTERFACE -fopenmp)
endif()
target_link_libraries(torch::torch_cpu INTERFACE torch::c10)
