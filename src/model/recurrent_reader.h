// read_recurrent: a layer's recurrent mixer out of a GGUF file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/metadata.h"
#include "model/model.h"
#include "model/tensor_table.h"

namespace coppice::model {

/// Which recurrent mixer a family has, and how its files say which layers have it.
enum class RecurrentKind : std::uint8_t {
  kNone,
  kShortConv,      ///< layers without key heads
  kMamba2,         ///< layers without key heads
  kDelta,          ///< layers that a list names, or all but the last one of each so many; gates are two matrices
  kDeltaOneGates,  ///< the same layers; gates are one matrix, and neighbouring heads read the same key head
};

/// Of each layer, whether it is recurrent. Throws LoadError: no layer is left that attends.
std::vector<bool> recurrent_layers(const Metadata& metadata, int n_layers, RecurrentKind kind);

/// p: what the layer's tensors' names begin with. Throws LoadError. REQUIRES: the kind isn't kNone.
RecurrentSpec read_recurrent(const Metadata& metadata, const TensorTable& tensors, int n_embd, const std::string& p,
                             RecurrentKind kind);

}  // namespace coppice::model
