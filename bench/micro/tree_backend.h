// The server's own kernel (src/attention/cpu) as a backend. Plan and schedule are made once, outside the time taken: a
// server keeps the plan, too, and makes a schedule in some 1/1,000 of a step (`bookkeeping` of `coppice bench`).
#pragma once

#include "backend.h"

namespace coppice::bench {

std::unique_ptr<Backend> make_tree_backend();

}  // namespace coppice::bench
