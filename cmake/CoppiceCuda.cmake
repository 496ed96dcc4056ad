# CUDA, for COPPICE_CUDA only. nvcc is called as it is: CMake 3.25 knows no C++20 for it. The host's half of a .cu file is compiled by
# the project's own compiler, after nvcc has written designators in GNU's old way into it.
set(suffixes ${CMAKE_FIND_LIBRARY_SUFFIXES})
set(CMAKE_FIND_LIBRARY_SUFFIXES .so .a)  # the package insists on libcudart.so, though only the archive is linked in
find_package(CUDAToolkit 12.4 REQUIRED)
set(CMAKE_FIND_LIBRARY_SUFFIXES ${suffixes})

# coppice_cuda_library(NAME attention_cuda SRCS ... ARCHS 80 90a DEPS ...): target coppice_attention_cuda, machine code for sm_80 and what
# runs such code (GPUs 8.x), and for Hopper (sm_90a, which is not forward compatible).
function(coppice_cuda_library)
  cmake_parse_arguments(A "" "NAME" "SRCS;ARCHS;DEPS" ${ARGN})
  set(target coppice_${A_NAME})
  set(objects)
  list(TRANSFORM A_ARCHS REPLACE "(.+)" "-gencode=arch=compute_\\1,code=sm_\\1")
  foreach(src ${A_SRCS})
    set(object "${CMAKE_CURRENT_BINARY_DIR}/${src}.o")
    add_custom_command(OUTPUT "${object}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} "${CUDAToolkit_NVCC_EXECUTABLE}" -std=c++20 -O3 --expt-relaxed-constexpr -ccbin "${CMAKE_CXX_COMPILER}"
        -Xcompiler -Wno-gnu-designator
        ${A_ARCHS} -I "${PROJECT_SOURCE_DIR}/src" -MD -MF "${object}.d"
        -c "${CMAKE_CURRENT_SOURCE_DIR}/${src}" -o "${object}"
      DEPENDS "${src}" DEPFILE "${object}.d" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  add_library(${target} STATIC ${objects})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_link_libraries(${target} PUBLIC ${A_DEPS} CUDA::cudart_static)
endfunction()
