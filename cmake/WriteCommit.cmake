# cmake -DOUT=FILE -DREPO=FOLDER -P WriteCommit.cmake: writes a C++ source that says which commit is built, if it differs from the one before.
# Run at each build, as configuring happens too seldom to know.
execute_process(COMMAND git -C "${REPO}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE commit ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")  # sources from an archive
endif()
file(CONFIGURE OUTPUT "${OUT}" CONTENT [[#include "cli/version.h"

const char* const coppice::cli::kCommit = "@commit@";
]] @ONLY)
