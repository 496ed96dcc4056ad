// read_experts: a layer's experts out of a GGUF file.
#pragma once

#include <string>

#include "model/metadata.h"
#include "model/model.h"
#include "model/tensor_table.h"

namespace coppice::model {

/// As ExpertsSpec has them.
struct ExpertTraits {
  Gating gating = Gating::kSoftmax;
  bool normalised = true;
  bool weighs_inputs = false;
};

/// p: what the layer's tensors' names begin with. n_ff: of each expert, if the file doesn't say it. Throws LoadError.
ExpertsSpec read_experts(const Metadata& metadata, const TensorTable& tensors, int n_embd, int n_ff,
                         const std::string& p, const ExpertTraits& traits, Activation activation);

}  // namespace coppice::model
