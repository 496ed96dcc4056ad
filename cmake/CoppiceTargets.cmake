# One target for each box of docs/architecture.md, its dependencies declared. Warnings are errors in our code only.
set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(COPPICE_SANITIZE "" CACHE STRING "address, thread, fuzz, or empty")
set(COPPICE_FLAGS -Wall -Wextra -Wpedantic -Werror -Wshadow -Wthread-safety -Wnon-virtual-dtor -Wno-missing-field-initializers)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:-Xclang -fno-pch-timestamp>")  # ccache knows a precompiled header by its bytes
if(COPPICE_SANITIZE)  # -O2 takes minutes for instrumented kernels; a stack trace needs lines, not variables
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -gline-tables-only -D_GLIBCXX_ASSERTIONS")
endif()
if(COPPICE_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  # These checks at each access make the compiler take minutes for a kernel and twice as long for a test. A bad address is
  # found without them.
  set(COPPICE_FEWER_CHECKS -fno-sanitize=null,alignment,pointer-overflow,object-size,vptr)
  # Highway leaves out the sets below this one: release builds test those.
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_compile_options(-march=x86-64-v3 -maes -mpclmul)
  endif()
elseif(COPPICE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # Tests that count or fail allocations bring operators of their own; the sanitizer's, which it uses then, would clash.
  add_link_options(-Wl,--allow-multiple-definition)
  # Threads do the same on each instruction set, and emulated vectors take minutes: one set stands for all.
  add_compile_definitions(HWY_COMPILE_ONLY_STATIC)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    add_compile_options(-march=x86-64-v3 -maes -mpclmul)
  endif()
elseif(COPPICE_SANITIZE STREQUAL "fuzz")  # as address, with libFuzzer's view of which code an input reaches
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
endif()

# With COPPICE_UNITY a dozen files of a target are compiled as one: headers, and what they instantiate, are most of the work. Highway's
# files compile themselves for each instruction set and stay alone, and so does what nvcc compiles.
function(coppice_compile_together target)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  get_target_property(sources ${target} SOURCES)
  if(COPPICE_UNITY AND NOT "hwy::hwy" IN_LIST libraries AND NOT sources MATCHES "\\.cu(;|$)")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  endif()
endfunction()

# coppice_library(NAME kv SRCS ... DEPS ... PRIVATE_DEPS ...): target coppice_kv; without SRCS, header-only.
function(coppice_library)
  cmake_parse_arguments(A "" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target coppice_${A_NAME})
  if(A_SRCS)
    add_library(${target} STATIC ${A_SRCS})
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${target} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
    target_compile_options(${target} PRIVATE ${COPPICE_FLAGS})
    coppice_compile_together(${target})
  else()
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${target} INTERFACE ${A_DEPS})
  endif()
endfunction()

# coppice_emulated_amx(matmul): target coppice_matmul_emulated_amx, the library again with emulated tiles (simd/amx_emulated-inl.h), compiled
# for no more than tiles need. Only x86 has tiles.
function(coppice_emulated_amx name)
  if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
    return()
  endif()
  set(from coppice_${name})
  set(target ${from}_emulated_amx)
  get_target_property(sources ${from} SOURCES)
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${sources})
  foreach(property INCLUDE_DIRECTORIES COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_LIBRARIES)
    get_target_property(value ${from} ${property})
    if(value)
      set_target_properties(${target} PROPERTIES ${property} "${value}")
    endif()
  endforeach()
  target_compile_definitions(${target} PRIVATE COPPICE_AMX_EMULATED
    "HWY_DISABLED_TARGETS=(HWY_AVX3 | HWY_AVX2 | HWY_SSE4 | HWY_SSSE3)")
endfunction()

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
