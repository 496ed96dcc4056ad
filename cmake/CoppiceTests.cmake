# What tests are registered with.
# A test takes two of ctest's places, which is one core (scripts/test.sh has twice as many places as cores); one that mostly waits takes one.
set(COPPICE_PLACES_OF_A_CORE 2)

# coppice_test(NAME kv_test SRCS cache_test.cpp ... DEPS coppice_kv [LABELS model|threads] [OPTIMIZED] [WAITS]): a GoogleTest program of one or
# more files, one ctest entry, or as many as SHARDS says, which share its cases out. model: it loads the pinned models. threads: it has threads of its
# own, so ThreadSanitizer runs it. OPTIMIZED: it computes much by itself.
# WAITS: it mostly sleeps. The target unit_tests is what AddressSanitizer runs: all but those that load models.
add_custom_target(unit_tests)
add_custom_target(threaded_tests)
# What nearly every test includes is parsed once for all of them: it took half of a test's compile time.
file(WRITE "${PROJECT_BINARY_DIR}/test_headers.cpp" "")
add_library(coppice_test_headers OBJECT "${PROJECT_BINARY_DIR}/test_headers.cpp")
target_link_libraries(coppice_test_headers PRIVATE GTest::gtest GTest::gmock fmt::fmt)
target_compile_options(coppice_test_headers PRIVATE ${COPPICE_FLAGS} -O0 ${COPPICE_FEWER_CHECKS})
target_precompile_headers(coppice_test_headers PRIVATE
  <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h> <nlohmann/json.hpp> <algorithm> <array> <chrono> <cmath> <filesystem> <fstream> <functional>
  <future> <iostream> <limits> <map> <memory> <numeric> <optional> <random> <set> <span> <stdexcept> <string> <thread> <vector>
  "${PROJECT_SOURCE_DIR}/tests/support/instantiated.h")
# The functions in these headers are compiled once, too, instead of in each test that calls them: a fifth of a test's compile time.
# They are optimised: the linker may take them for the libraries' own, too.
target_compile_options(coppice_test_headers PRIVATE -fpch-codegen)
set(COPPICE_TEST_PCH "${PROJECT_BINARY_DIR}/CMakeFiles/coppice_test_headers.dir/cmake_pch.hxx.pch")
get_directory_property(sanitizers COMPILE_OPTIONS)
list(FILTER sanitizers INCLUDE REGEX "^-[fm]")
if(CMAKE_CXX_COMPILER_TARGET)
  list(APPEND sanitizers "--target=${CMAKE_CXX_COMPILER_TARGET}")
endif()
add_custom_command(OUTPUT test_headers_code.o
  COMMAND ${CMAKE_CXX_COMPILER} -O1 -ffunction-sections ${sanitizers} ${COPPICE_FEWER_CHECKS} -c "${COPPICE_TEST_PCH}" -o test_headers_code.o
  DEPENDS coppice_test_headers "${COPPICE_TEST_PCH}" VERBATIM)
add_library(coppice_test_headers_code STATIC test_headers_code.o)
set_target_properties(coppice_test_headers_code PROPERTIES LINKER_LANGUAGE CXX)
target_link_options(coppice_test_headers_code INTERFACE -Wl,--gc-sections)
function(coppice_test)
  cmake_parse_arguments(A "OPTIMIZED;WAITS" "NAME;TIMEOUT;SHARDS" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${A_NAME} ${A_SRCS})
  target_include_directories(${A_NAME} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} coppice_test_headers_code GTest::gtest GTest::gmock GTest::gtest_main)
  coppice_compile_together(${A_NAME})
  # Tests compile for longer than they run: without optimisation it takes half of the time.
  if(A_OPTIMIZED)
    target_compile_options(${A_NAME} PRIVATE ${COPPICE_FLAGS} -O1 ${COPPICE_FEWER_CHECKS})
  else()
    target_compile_options(${A_NAME} PRIVATE ${COPPICE_FLAGS} -O0 ${COPPICE_FEWER_CHECKS})
    target_precompile_headers(${A_NAME} REUSE_FROM coppice_test_headers)
  endif()
  # A limit ends what hangs, on machines with ten times as much to do, too.
  set(A_COST 200)
  if(A_TIMEOUT)
    set(A_COST ${A_TIMEOUT})
  else()
    set(A_TIMEOUT 1000)
  endif()
  if(CMAKE_CROSSCOMPILING_EMULATOR)
    math(EXPR A_TIMEOUT "4 * ${A_TIMEOUT}")  # an emulator takes ten times as long, and has neighbours, too
  endif()
  if(NOT A_SHARDS)
    set(A_SHARDS 1)
  endif()
  set(places ${COPPICE_PLACES_OF_A_CORE})
  if(A_WAITS)
    set(places 1)
  endif()
  foreach(shard RANGE 1 ${A_SHARDS})
    set(name ${A_NAME})
    if(A_SHARDS GREATER 1)
      set(name ${A_NAME}_${shard})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${name} COMMAND ${A_NAME})
    # The longest go first, or one core waits for them at the end.
    set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} COST ${A_COST} PROCESSORS ${places} LABELS "${A_LABELS}" ENVIRONMENT
      "COPPICE_MODEL=${COPPICE_MODEL};COPPICE_GEMMA3=${COPPICE_GEMMA3};GTEST_TOTAL_SHARDS=${A_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
  if("threads" IN_LIST A_LABELS)
    add_dependencies(threaded_tests ${A_NAME})
  endif()
  if(NOT "model" IN_LIST A_LABELS AND NOT "bench" IN_LIST A_LABELS)
    add_dependencies(unit_tests ${A_NAME})
  endif()
  foreach(src ${A_SRCS})
    set_property(GLOBAL APPEND PROPERTY COPPICE_TEST_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${src}")
  endforeach()
endfunction()

# coppice_emulated_amx_test(matmul_quant_matrix_test [FILTER tests] [DEPS what it links beside GoogleTest]): a test program's objects, linked
# with emulated tiles in place of the processor's, as MATMUL_QUANT_MATRIX_TEST_emulated_amx. FILTER: as GTEST_FILTER.
function(coppice_emulated_amx_test test)
  if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    return()
  endif()
  cmake_parse_arguments(A "" "FILTER" "" ${ARGN})
  if(NOT A_FILTER)
    set(A_FILTER *)  # an empty one lets no test run
  endif()
  set(name ${test}_emulated_amx)
  get_target_property(libraries ${test} LINK_LIBRARIES)
  add_executable(${name} $<TARGET_OBJECTS:${test}>)
  # They come first, and whole: what is there is not looked for in the libraries that they stand for.
  target_link_libraries(${name} PRIVATE
    "$<LINK_LIBRARY:WHOLE_ARCHIVE,coppice_simd_emulated_amx,coppice_matmul_emulated_amx,coppice_attention_cpu_emulated_amx>" ${libraries} coppice_port)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 1000 COST 300 PROCESSORS ${COPPICE_PLACES_OF_A_CORE} FAIL_REGULAR_EXPRESSION "Running 0 tests"
    ENVIRONMENT "GTEST_FILTER=${A_FILTER};COPPICE_MODEL=${COPPICE_MODEL};COPPICE_GEMMA3=${COPPICE_GEMMA3}")
  add_dependencies(unit_tests ${name})
endfunction()

# Test files that this build doesn't have on purpose.
function(coppice_leave_out)
  foreach(src ${ARGN})
    set_property(GLOBAL APPEND PROPERTY COPPICE_TEST_SOURCES "${CMAKE_CURRENT_SOURCE_DIR}/${src}")
  endforeach()
endfunction()

# A test file that nobody builds is a test that cannot fail: refuse to configure. (Without llama.cpp, folders that need it
# are not looked at.)
function(coppice_check_registered dir)
  get_property(known GLOBAL PROPERTY COPPICE_TEST_SOURCES)
  if(COPPICE_LLAMA_DIR)
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${dir}/*_test.cpp")
  else()
    file(GLOB_RECURSE found CONFIGURE_DEPENDS "${dir}/kv/*_test.cpp" "${dir}/attention/*_test.cpp"
         "${dir}/matmul/*_test.cpp" "${dir}/engine/*_test.cpp")
  endif()
  foreach(f ${found})
    if(NOT f IN_LIST known)
      message(FATAL_ERROR "${f} is not registered: add it with coppice_test() in ${dir}/CMakeLists.txt")
    endif()
  endforeach()
endfunction()
