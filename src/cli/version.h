// Which coppice this is.
#pragma once

#include <string>

namespace coppice::cli {

/// Of the repository, with "-dirty" where files differ from it; "unknown" where it was built without. Written by
/// cmake/WriteCommit.cmake.
extern const char* const kCommit;

/// What --version says: version, commit, and the instruction sets that the kernels use on this processor. Throws
/// model::LoadError: it has no kernels for this one.
std::string version_text();

}  // namespace coppice::cli
