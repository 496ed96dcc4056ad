// The server's own kernel (src/attention/cpu) as a backend. Plan and schedule are made once, outside the time taken: they
// are kept between a server's steps too.
#pragma once

#include "backend.h"

namespace coppice::bench {

std::unique_ptr<Backend> make_tree_backend();

}  // namespace coppice::bench
