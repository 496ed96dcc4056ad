// Families: how to read a ModelSpec out of a GGUF file, by its general.architecture. Adding a plain decoder means one
// line in families.cpp and, where it has rules of its own, one function; cache, engine and server don't know.
#pragma once

#include <string_view>
#include <vector>

#include "model/model.h"

namespace coppice::model {

std::vector<std::string_view> known_architectures();

/// Reads and checks; splits tensors that hold several matrices. Throws LoadError: the file's fault, or an unknown
/// architecture: then it lists the known ones.
ModelSpec read_spec(GgufFile& file);

}  // namespace coppice::model
