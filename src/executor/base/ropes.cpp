#include "executor/base/ropes.h"

#include <cstring>

namespace coppice::executor {

std::vector<attention::Rope> make_ropes(const model::Model& model) {
  std::vector<attention::Rope> ropes;
  for (const model::RopeSpec& rope : model.spec.ropes) {
    attention::RopeShape shape{.halves = rope.halves,
                               .dims = rope.dims,
                               .base = rope.base,
                               .scale = rope.freq_scale,
                               .magnitude = rope.magnitude};
    if (rope.sections) {
      shape.sections = rope.sections->pairs;
      shape.interleaved = rope.sections->interleaved;
    }
    std::vector<float> factors;
    if (rope.freq_factors != model::kNoTensor) {
      const auto bytes = model.file->tensor_bytes(model.file->tensors()[static_cast<std::size_t>(rope.freq_factors)]);
      factors.resize(bytes.size() / sizeof(float));
      std::memcpy(factors.data(), bytes.data(), factors.size() * sizeof(float));
      shape.factors = factors;
    }
    if (rope.yarn) {
      shape.yarn = {.beta_fast = rope.yarn->beta_fast,
                    .beta_slow = rope.yarn->beta_slow,
                    .original_context = static_cast<double>(rope.yarn->original_context),
                    .whole_pairs = rope.yarn->whole_pairs};
    }
    ropes.emplace_back(shape);
  }
  return ropes;
}

}  // namespace coppice::executor
