// ModelSpec: what to compute, as data. A family (families.h) fills it from a GGUF file; every executor builds
// its graph or its kernels from it. Plain data, no tensor library: the native GPU executor reads the same.
//
// Tensors are named by TensorId, an index into GgufFile::tensors(); kNoTensor where a model has none.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/gguf_file.h"

namespace coppice::model {

using TensorId = int;
inline constexpr TensorId kNoTensor = -1;

enum class RopeType : std::uint8_t {
  kNorm,  ///< rotates neighbours (0, 1), (2, 3), ...
};

struct RopeSpec {
  RopeType type = RopeType::kNorm;
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

/// Pre-norm attention, then a gated feed-forward: x += wo(attend(norm(x))); x += down(silu(gate(n)) * up(n)).
struct LayerSpec {
  TensorId attn_norm = kNoTensor;  ///< f32 [n_embd]
  LinearSpec q, k, v, o;
  TensorId ffn_norm = kNoTensor;  ///< f32 [n_embd]
  LinearSpec gate, up, down;
  int window = 0;  ///< tokens a query sees, itself included; 0: all
};

struct ModelSpec {
  std::string name;
  std::string architecture;
  int n_vocab = 0;
  int n_embd = 0;
  int n_head = 0;
  int n_kv_head = 0;
  int head_dim = 0;
  int n_ff = 0;
  std::int32_t context_length = 0;  ///< tokens it was trained for
  float norm_eps = 0;
  float attention_scale = 0;
  RopeSpec rope;
  TensorId embedding = kNoTensor;    ///< [n_embd, n_vocab]
  TensorId output_norm = kNoTensor;  ///< f32 [n_embd]
  TensorId output = kNoTensor;       ///< [n_embd, n_vocab]; the embedding itself when tied
  std::vector<LayerSpec> layers;

  int n_embd_kv() const { return n_kv_head * head_dim; }
  bool tied_output() const { return output == embedding; }
};

/// A validated model: every tensor that the spec names exists, with the right shape, inside the file.
struct Model {
  std::unique_ptr<const GgufFile> file;
  ModelSpec spec;
  std::string digest;  ///< hex SHA-256 of metadata, tensor table and a sample of each tensor [K8]
};

/// Throws LoadError.
Model load_model(const std::string& path);

/// Hex SHA-256 of metadata, tensor table and a sample of each tensor (its first, middle and last 4 KiB):
/// reading every byte of a 100 GB file at start would be a check of the disk, not of identity.
std::string model_digest(const GgufFile& file);

}  // namespace coppice::model
