# For the wheel (make wheel): everything but the C library is linked in. COPPICE_OLD_LIBC is the folder that scripts/old_libc.sh makes, which has the
# archives that Debian lacks; its other libraries come as Debian's archives. What is compiled is the same as for the package, only the linking differs.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
set(CMAKE_LIBRARY_PATH "${COPPICE_OLD_LIBC}")
list(APPEND CMAKE_FIND_ROOT_PATH "${COPPICE_OLD_LIBC}")  # for another machine nothing is looked for elsewhere
set(OPENSSL_USE_STATIC_LIBS ON)
set(CMAKE_BUILD_RPATH "${COPPICE_OLD_LIBC}/../run")

# Their CMake packages know the shared library only.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(HWY REQUIRED)
foreach(library fmt spdlog hwy)
  get_target_property(configurations ${library}::${library} IMPORTED_CONFIGURATIONS)
  foreach(configuration ${configurations})
    set_target_properties(${library}::${library} PROPERTIES IMPORTED_LOCATION_${configuration} "${COPPICE_OLD_LIBC}/lib${library}.a")
  endforeach()
endforeach()
