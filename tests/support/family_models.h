// Tiny random models of the known families: every layer kind that a family has, in the shapes that its files have.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace coppice::test {

struct FamilyModel {
  std::string name;
  TinyModel model;
};

inline std::ostream& operator<<(std::ostream& out, const FamilyModel& m) {
  return out << m.name;
}

/// Families whose layers all keep keys and values.
std::vector<FamilyModel> family_models();

/// Families with recurrent layers.
std::vector<FamilyModel> hybrid_models();

}  // namespace coppice::test
