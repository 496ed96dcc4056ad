# Toolchain file for macOS on Apple Silicon. It is used from the folder that scripts/macos_sysroot.sh makes, where what stands for Apple's SDK
# lies beside it.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_SYSROOT "${CMAKE_CURRENT_LIST_DIR}/sysroot")
set(CMAKE_OSX_DEPLOYMENT_TARGET 13.0)
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_C_COMPILER_TARGET arm64-apple-macos)
set(CMAKE_CXX_COMPILER_TARGET arm64-apple-macos)
set(CMAKE_EXE_LINKER_FLAGS_INIT -fuse-ld=lld)
# A name that older systems lack would link, and stop the program when it is started there.
add_compile_options(-Werror=unguarded-availability-new)
add_link_options(LINKER:-dead_strip,-S,-x)  # without what nobody calls, debug information and local names
# std::jthread is an experiment in clang 19's libc++; Boost.Beast's client uses what C++23 deprecates, std::aligned_storage.
add_compile_definitions(_LIBCPP_ENABLE_EXPERIMENTAL _LIBCPP_DISABLE_DEPRECATION_WARNINGS)
set(CMAKE_AR /usr/bin/llvm-ar-19)
set(CMAKE_RANLIB /usr/bin/llvm-ranlib-19)
set(CMAKE_INSTALL_NAME_TOOL /usr/bin/llvm-install-name-tool-19)
set(CMAKE_FIND_ROOT_PATH "${CMAKE_OSX_SYSROOT}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
