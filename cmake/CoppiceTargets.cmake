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
