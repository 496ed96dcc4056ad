# cmake -DOUT=FILE -DSRC=FOLDER -DVERSION=V -DCOMPILER=TEXT -P WriteBuildId.cmake: writes a header that names what the program and a module
# that it loads must have in common: the version, all headers and the compiler with its flags. Written only if it differs from the one
# before. Run at each build, as configuring happens too seldom to know.
file(GLOB_RECURSE headers RELATIVE "${SRC}" "${SRC}/*.h")
list(SORT headers)
set(all "${COMPILER}")
foreach(header ${headers})
  file(SHA256 "${SRC}/${header}" hash)
  string(APPEND all "${header} ${hash}\n")
endforeach()
string(SHA256 id "${all}")
string(SUBSTRING "${id}" 0 12 id)
file(CONFIGURE OUTPUT "${OUT}" CONTENT [[// Written by cmake/WriteBuildId.cmake.
#pragma once

#define COPPICE_BUILD "@VERSION@-@id@"
]] @ONLY)
