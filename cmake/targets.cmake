# The wheel of python/ builds rooms from a project of its own.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH shoal_root)

# What is tested is compiled as users get it, in the libraries; the tests themselves with fewer
# optimizations, which saves a fifth to a third of the compiler's time. With those of -Og gcc thinks
# of some variables that they might be uninitialized.
# Under UBSan, whose checks take the compiler 40 % of its time, the libraries alone have them.
set(shoal_test_options "")
if(SHOAL_SANITIZE MATCHES "undefined")
  set(shoal_test_options -fno-sanitize=undefined)
elseif(NOT SHOAL_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "Release")
  set(shoal_test_options -Og -Wno-maybe-uninitialized)
endif()

# shoal_precompile_headers(TARGET LIBRARY|PROGRAM [TORCH] [TEST])
#   Most of the time that a source file takes to compile goes into the same few headers of the
#   standard library, fmt and LibTorch. Each kind of target has them precompiled once, by the first
#   target that asks, and shares them with all later ones (gcc accepts them only for the same kind
#   of position-independent code). A source file includes what it uses all the
#   same: -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without, and shows a missing #include.
function(shoal_precompile_headers target kind)
  cmake_parse_arguments(arg "TORCH;TEST" "" "" ${ARGN})
  set(headers <algorithm> <cstdint> <functional> <memory> <optional> <string> <string_view>
              <vector> <fmt/format.h>)
  set(packages fmt::fmt Threads::Threads)
  string(TOLOWER "shoal_${kind}_headers" donor)
  if(arg_TEST)
    string(APPEND donor "_test")
    list(APPEND headers <gtest/gtest.h> <gmock/gmock.h>)
    list(APPEND packages GTest::gtest GTest::gmock)
  endif()
  if(arg_TORCH)
    string(APPEND donor "_torch")
    list(APPEND headers <ATen/core/Tensor.h> <ATen/TensorOperators.h> <ATen/ops/empty.h>
                        <ATen/ops/zeros.h>)
    list(APPEND packages torch::torch_cpu torch::c10)
  endif()
  if(NOT TARGET ${donor})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/${donor}.cpp CONTENT "int main() {}\n")
    if(kind STREQUAL "LIBRARY")
      # An object library has the code of a shared one, and no macro <target>_EXPORTS.
      add_library(${donor} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${donor}.cpp)
    else()
      add_executable(${donor} EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/${donor}.cpp)
    endif()
    target_link_libraries(${donor} PRIVATE ${packages})
    target_compile_options(${donor} PRIVATE -fpch-preprocess)
    # With the -O of the tests: from 13 on gcc takes no other, and before it gives the functions of
    # some sources, whatever their own options, the -O that the headers were made with.
    if(arg_TEST)
      target_compile_options(${donor} PRIVATE ${shoal_test_options})
    endif()
    target_precompile_headers(${donor} PRIVATE ${headers})
  endif()
  # -fpch-preprocess is for ccache. The warnings: gcc 12 forgets with precompiled headers that the
  # code it complains of stands in a system header.
  target_compile_options(${target} PRIVATE -fpch-preprocess -Wno-array-bounds -Wno-restrict
                         -Wno-stringop-overflow -Wno-stringop-overread)
  target_precompile_headers(${target} REUSE_FROM ${donor})
endfunction()

# shoal_compile_together(TARGET)
#   Lets the compiler take the sources of a target in batches of eight. Headers leave templates behind
#   that every translation unit instantiates anew (those of LibTorch 1.8 s, precompiled or not), and
#   sources of one room use the same ones, so fewer units are most of what a first build can save:
#   with six sources a batch the room `train` takes the compiler 135 s, with three 193 s. Larger
#   batches make an incremental build wait. Kernels for several instruction sets include themselves
#   and stay alone. Sources of one batch share anonymous namespaces: two of them may not give one
#   name to different things.
#   In a test program a name of one source could silently hide that of a header in another: each has
#   a namespace of its own inside its room's, named as the file (tools/check_layers.py).
#   -DSHOAL_BATCHES=OFF compiles each source alone, as the preset `dev` does for editors and
#   debuggers.
option(SHOAL_BATCHES "Compile the sources of a room in batches" ON)
function(shoal_compile_together target)
  if(NOT SHOAL_BATCHES)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    if(source MATCHES "^\\$<")  # objects of other targets
      continue()
    endif()
    file(STRINGS ${source} kernels REGEX "hwy/foreach_target.h" LIMIT_COUNT 1)
    if(kernels)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  # gcc takes a source that another one includes for a header, where a type with a member from an
  # anonymous namespace would be a mistake.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
endfunction()

# shoal_library(ROOM [TORCH] [SOURCES ...] [LINKS other rooms ...] [PACKAGES ...] [PRIVATE_PACKAGES ...])
#   One room, one shared library libshoal_<room>.so, so that touching a file relinks one small library. Without SOURCES every .cpp below
#   the folder belongs to it.
function(shoal_library room)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;LINKS;PACKAGES;PRIVATE_PACKAGES" ${ARGN})
  string(REPLACE "/" "_" target ${room})
  if(NOT arg_SOURCES)
    file(GLOB_RECURSE arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
    # A room inside a room (train/config) has its own CMakeLists.txt and is not part of this one.
    file(GLOB_RECURSE inner ${CMAKE_CURRENT_SOURCE_DIR}/*/CMakeLists.txt)
    foreach(list_file ${inner})
      get_filename_component(folder ${list_file} DIRECTORY)
      list(FILTER arg_SOURCES EXCLUDE REGEX "^${folder}/")
    endforeach()
  endif()
  if(arg_SOURCES)
    add_library(shoal_${target} SHARED ${arg_SOURCES})
    set(scope PUBLIC)
  else()
    add_library(shoal_${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(shoal_${target} ${scope} $<BUILD_INTERFACE:${shoal_root}/src>
                             $<INSTALL_INTERFACE:include>)
  target_compile_features(shoal_${target} ${scope} cxx_std_20)
  foreach(link ${arg_LINKS})
    string(REPLACE "/" "_" link ${link})
    target_link_libraries(shoal_${target} ${scope} shoal_${link})
  endforeach()
  target_link_libraries(shoal_${target} ${scope} ${arg_PACKAGES} Threads::Threads)
  if(arg_PRIVATE_PACKAGES AND arg_SOURCES)
    # A program that uses the installed room need not have what only its sources include.
    foreach(package ${arg_PRIVATE_PACKAGES})
      target_link_libraries(shoal_${target} PRIVATE $<BUILD_INTERFACE:${package}>)
    endforeach()
  endif()
  if(arg_TORCH)
    target_link_libraries(shoal_${target} ${scope} torch::torch_cpu torch::c10)
    set(torch TORCH)
  endif()
  if(arg_SOURCES)
    shoal_precompile_headers(shoal_${target} LIBRARY ${torch})
    shoal_compile_together(shoal_${target})
  endif()
  # As shoal::<room> of the installed package (install_package.cmake).
  if(arg_TORCH)
    set(rooms shoal-torch-rooms)
  else()
    set(rooms shoal-rooms)
  endif()
  set_target_properties(shoal_${target} PROPERTIES EXPORT_NAME ${target})
  install(TARGETS shoal_${target} EXPORT ${rooms} LIBRARY DESTINATION lib)
endfunction()

# shoal_batch(NAME source ...)
#   Has the compiler take these sources together, in a target whose UNITY_BUILD_MODE is GROUP.
function(shoal_batch name)
  set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${name})
endfunction()

# shoal_schedule(NAME [PROCESSORS n | WAITS] [SECONDS s])
#   Tells ctest how much load a test is. tools/test.sh and tools/sanitize.sh give it two slots a core: a test that keeps n cores busy takes
#   2 n of them, and one that WAITS (for a silence, a timeout, a slow link) most of its time takes one, so that others compute meanwhile.
#   SECONDS: how long it runs; the longest begin first, so that none is left over at the end. Tests of a few seconds need not say.
function(shoal_schedule name)
  cmake_parse_arguments(arg "WAITS" "PROCESSORS;SECONDS" "" ${ARGN})
  set(slots 1)
  if(NOT arg_WAITS)
    if(NOT arg_PROCESSORS)
      set(arg_PROCESSORS 1)
    endif()
    math(EXPR slots "2 * ${arg_PROCESSORS}")
  endif()
  set_tests_properties(${name} PROPERTIES PROCESSORS ${slots})
  if(arg_SECONDS)
    set_tests_properties(${name} PROPERTIES COST ${arg_SECONDS})
  endif()
endfunction()

# shoal_test(NAME [EVERY_INSTRUCTION_SET] ROOMS ... [SOURCES ...] [PACKAGES ...] [RUN command ...] [TIMEOUT seconds] [PROCESSORS n | WAITS]
#            [SECONDS s] [SANITIZED_SHARDS n])
#   tests/<folder>/CMakeLists.txt calls it once per room; without SOURCES every *_test.cpp of the folder is in it. One ctest entry per program;
#   gtest counts inside. TIMEOUT: 1500 unless said, for slow machines and sanitizers. PROCESSORS, WAITS, SECONDS: as for
#   shoal_schedule().
#   RUN: what starts the program, such as mpirun. EVERY_INSTRUCTION_SET: three more entries run it limited to AVX2, to the portable
#   instructions, and with 3 threads. SANITIZED_SHARDS: with a sanitizer, which makes it several times slower, n entries run a part of it each,
#   so that no core idles behind the longest program.
function(shoal_test name)
  cmake_parse_arguments(arg "EVERY_INSTRUCTION_SET;WAITS" "TIMEOUT;PROCESSORS;SECONDS;SANITIZED_SHARDS" "ROOMS;SOURCES;PACKAGES;RUN" ${ARGN})
  if(NOT arg_SOURCES)
    file(GLOB_RECURSE arg_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cpp)
  endif()
  add_executable(${name} ${arg_SOURCES})
  foreach(source ${arg_SOURCES})
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(GLOBAL APPEND PROPERTY SHOAL_TEST_SOURCES ${source})
  endforeach()
  foreach(room ${arg_ROOMS})
    string(REPLACE "/" "_" room ${room})
    target_link_libraries(${name} PRIVATE shoal_${room})
  endforeach()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_PACKAGES} GTest::gtest GTest::gmock shoal_test_main)
  foreach(room ${arg_ROOMS})
    if(room IN_LIST shoal_torch_rooms)
      set(torch TORCH)
    endif()
  endforeach()
  shoal_precompile_headers(${name} PROGRAM TEST ${torch})
  shoal_compile_together(${name})
  target_compile_options(${name} PRIVATE ${shoal_test_options})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 1500)
  endif()
  set(load PROCESSORS "${arg_PROCESSORS}" SECONDS "${arg_SECONDS}")
  if(arg_WAITS)
    list(APPEND load WAITS)
  endif()
  if(NOT arg_SANITIZED_SHARDS OR NOT SHOAL_SANITIZE)
    set(arg_SANITIZED_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${arg_SANITIZED_SHARDS})
    set(entry ${name})
    if(arg_SANITIZED_SHARDS GREATER 1)
      string(APPEND entry _${shard}_of_${arg_SANITIZED_SHARDS})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${arg_RUN} $<TARGET_FILE:${name}>)
    set_tests_properties(${entry} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT
                         "OMP_NUM_THREADS=1;GTEST_TOTAL_SHARDS=${arg_SANITIZED_SHARDS};GTEST_SHARD_INDEX=${index}")
    shoal_schedule(${entry} ${load})
  endforeach()
  if(arg_EVERY_INSTRUCTION_SET AND NOT SHOAL_SANITIZE)
    add_test(NAME ${name}_3_threads COMMAND ${arg_RUN} $<TARGET_FILE:${name}>)
    set_tests_properties(${name}_3_threads PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "OMP_NUM_THREADS=3")
    shoal_schedule(${name}_3_threads PROCESSORS 2 SECONDS "${arg_SECONDS}")
    set(limits)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      set(limits avx2 portable)
    endif()
    foreach(limit ${limits})
      add_test(NAME ${name}_${limit} COMMAND ${arg_RUN} $<TARGET_FILE:${name}>)
      set_tests_properties(${name}_${limit} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "OMP_NUM_THREADS=1;SHOAL_CPU=${limit}")
      shoal_schedule(${name}_${limit} ${load})
    endforeach()
  endif()
endfunction()

# shoal_bench(NAME ROOMS ... SOURCES ... [PACKAGES ...]): a measuring program, built with everything, run only by `make bench`. Its name ends
#   in _bench, and it speaks as bench/run.py says.
function(shoal_bench name)
  cmake_parse_arguments(arg "" "" "ROOMS;SOURCES;PACKAGES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  foreach(room ${arg_ROOMS})
    string(REPLACE "/" "_" room ${room})
    target_link_libraries(${name} PRIVATE shoal_${room})
    if(room IN_LIST shoal_torch_rooms)
      set(torch TORCH)
    endif()
  endforeach()
  target_link_libraries(${name} PRIVATE ${arg_PACKAGES})
  shoal_precompile_headers(${name} PROGRAM ${torch})
endfunction()
