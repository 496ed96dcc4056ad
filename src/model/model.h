// ModelSpec: what to compute, as data. A family (families.h) fills it from a GGUF file; every executor builds
// its graph or its kernels from it. Plain data, no tensor library: an executor for another device can read it.
//
// Tensors are named by TensorId, an index into GgufFile::tensors(); kNoTensor where a model has none.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/gguf_file.h"
#include "model/load_error.h"

namespace coppice::model {

using TensorId = int;
inline constexpr TensorId kNoTensor = -1;

/// Rotary positions: neighbours (0, 1), (2, 3), ... of each head turn together.
struct RopeSpec {
  int dims = 0;  ///< of each head, from the start
  float base = 10000;
  float freq_scale = 1;               ///< 1 / factor of linear scaling
  TensorId freq_factors = kNoTensor;  ///< f32 [dims / 2]
};

/// A matrix [n_in, n_out] and its bias [n_out], which most models lack.
struct LinearSpec {
  TensorId weight = kNoTensor;
  TensorId bias = kNoTensor;
};

/// The attention mixer: o(softmax(q k^T) v).
struct AttentionSpec {
  LinearSpec q, k, v, o;
  int window = 0;  ///< tokens a query sees, itself included; 0: all

  std::array<const LinearSpec*, 4> linears() const { return {&q, &k, &v, &o}; }
};

/// The gated feed-forward: down(silu(gate(x)) * up(x)).
struct GatedSpec {
  LinearSpec gate, up, down;

  std::array<const LinearSpec*, 3> linears() const { return {&gate, &up, &down}; }
};

/// x += mixer(norm(x)), then x += feed_forward(norm(x)). Another kind of either goes beside the ones above, and is built in
/// a file of its own in each executor.
struct LayerSpec {
  TensorId mixer_norm = kNoTensor;  ///< f32 [n_embd]
  AttentionSpec mixer;
  TensorId feed_forward_norm = kNoTensor;  ///< f32 [n_embd]
  GatedSpec feed_forward;
};

struct ModelSpec {
  std::string name;
  std::string architecture;
  int n_vocab = 0;
  int n_embd = 0;
  int n_head = 0;
  int n_kv_head = 0;
  int head_dim = 0;
  std::int32_t context_length = 0;  ///< tokens it was trained for
  float norm_eps = 0;
  float attention_scale = 0;
  RopeSpec rope;
  TensorId embedding = kNoTensor;    ///< [n_embd, n_vocab]
  TensorId output_norm = kNoTensor;  ///< f32 [n_embd]
  TensorId output = kNoTensor;       ///< [n_embd, n_vocab]; the embedding itself when tied
  std::vector<LayerSpec> layers;

  /// All matrices that rows are multiplied by: the layers' in order, then the output.
  std::vector<TensorId> matrices() const;
};

/// A validated model: every tensor that the spec names exists, with the right shape, inside the file.
struct Model {
  std::unique_ptr<const GgufFile> file;
  ModelSpec spec;
  std::string digest;  ///< hex SHA-256 of metadata, tensor table and a sample of each tensor
};

/// Throws LoadError.
Model load_model(const std::string& path);

/// Hex SHA-256 of metadata, tensor table and a sample of each tensor (its first, middle and last 4 KiB):
/// reading every byte of a 100 GB file at start would be a check of the disk, not of identity.
std::string model_digest(const GgufFile& file);

}  // namespace coppice::model
