// Experts whose matrices are in our own packed form: rows are sorted by expert, so that each one's weights are read
// once for all rows that chose it.
#pragma once

#include "executor/ggml/graph/expert_choice.h"

namespace coppice::executor {

/// Whether the matrices are packed: all of them or none.
bool are_packed(const Weights& weights, const model::ExpertsSpec& spec);

struct PackedExperts {
  ggml_tensor* parts;      ///< [n_embd, n_used * n_rows]: what experts make of rows, sorted by expert
  ggml_tensor* positions;  ///< i32 [n_used * n_rows]: which of them are a row's, in the order of `choice`
};
/// x: [n_embd, n_rows]; or [n_embd, n_used, n_rows], where each expert of a row reads something else.
PackedExperts packed_experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x,
                             const ExpertChoice& choice);

}  // namespace coppice::executor
