// The rotations of a model, as its spec and its file have them.
#pragma once

#include <vector>

#include "attention/rope.h"
#include "model/model.h"

namespace coppice::executor {

/// As ModelSpec::ropes.
std::vector<attention::Rope> make_ropes(const model::Model& model);

}  // namespace coppice::executor
