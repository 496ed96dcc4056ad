#pragma once

#include "executor/executor.h"

namespace coppice::cli {

/// Runs one token through the model, before anybody is told that it is ready: weights that are damaged, or memory that
/// is too little for a step, show here. Writes into the pool's first blocks, which nobody holds yet. Throws
/// std::runtime_error with a sentence for the operator.
void try_first_step(executor::Executor& executor);

}  // namespace coppice::cli
