# llama.cpp's library "common", and with it the tools that need it, is compiled from a copy, which jinja.cmake and chat.cmake mend.
set(common "${CMAKE_CURRENT_BINARY_DIR}/mended/llama/common")
file(REMOVE_RECURSE "${CMAKE_CURRENT_BINARY_DIR}/mended/llama")
file(COPY "${LLAMA_SOURCE_DIR}/common" DESTINATION "${CMAKE_CURRENT_BINARY_DIR}/mended/llama")
file(CREATE_LINK "${LLAMA_SOURCE_DIR}/src" "${common}/../src" SYMBOLIC)  # it includes "../src/llama-ext.h"

# mend_common(FILE OLD NEW WHAT): an upgrade that lacks the text stops here.
function(mend_common file old new what)
  file(READ "${common}/${file}" text)
  string(REPLACE "${old}" "${new}" better "${text}")
  if(better STREQUAL text)
    message(FATAL_ERROR "llama.cpp's ${file} lacks what is to be mended: look whether ${what} now.")
  endif()
  file(WRITE "${common}/${file}" "${better}")
endfunction()
include("${CMAKE_CURRENT_LIST_DIR}/jinja.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/chat.cmake")

# What llama.cpp's own CMakeLists.txt has set for these folders.
foreach(variable LLAMA_VERSION_BASE LLAMA_VERSION_MAJOR CMAKE_RUNTIME_OUTPUT_DIRECTORY CMAKE_LIBRARY_OUTPUT_DIRECTORY)
  get_directory_property(${variable} DIRECTORY "${LLAMA_SOURCE_DIR}" DEFINITION ${variable})
endforeach()
set(PROJECT_SOURCE_DIR "${LLAMA_SOURCE_DIR}")
add_subdirectory("${LLAMA_SOURCE_DIR}/vendor/cpp-httplib" llama.cpp/vendor/cpp-httplib EXCLUDE_FROM_ALL)
add_subdirectory("${common}" llama.cpp/common EXCLUDE_FROM_ALL)
add_subdirectory("${LLAMA_SOURCE_DIR}/tools" llama.cpp/tools EXCLUDE_FROM_ALL)
