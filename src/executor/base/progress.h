// Progress: how far loading is.
#pragma once

#include <functional>
#include <string_view>

namespace coppice::executor {

/// Told on the thread that loads; may be empty. What it throws ends the loading and reaches who asked for it.
using Progress = std::function<void(std::string_view stage, double fraction)>;

}  // namespace coppice::executor
