// What loading a model says.
#pragma once

#include <string>

#include "model/model.h"

namespace coppice::model {

/// The sentence that loading ends with; empty when it loads.
inline std::string complaint(const std::string& path) {
  try {
    load_model(path);
    return {};
  } catch (const LoadError& e) {
    return e.what();
  }
}

}  // namespace coppice::model
