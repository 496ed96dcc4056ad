// What XGrammar says while it works. For this folder's .cpp files only.
#pragma once

#include <string>

namespace coppice::grammar {

/// Collects the warnings of this thread while it lives; they don't nest.
class Warnings {
 public:
  Warnings();
  ~Warnings();
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  /// The first; empty: none.
  const std::string& first() const { return first_; }
  void add(const std::string& message) {
    if (first_.empty()) first_ = message;
  }

 private:
  std::string first_;
};

}  // namespace coppice::grammar
