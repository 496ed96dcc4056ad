// LoadError: a model that can't be loaded.
#pragma once

#include <stdexcept>

namespace coppice::model {

/// what() is one sentence for the person who started the program.
class LoadError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace coppice::model
