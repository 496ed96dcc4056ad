// What a mixture of experts computes on an NVIDIA GPU around its products (matmul/cuda/part_product.h), each as one
// kernel: which experts each row takes, rows sorted by expert, the weighted sum of what experts gave. Nothing of it
// goes to the host.
//
// A pair is a row and one of its experts: pair row * n_used + k. Pointers, launches and determinism as in operators.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/cuda/operators.h"
#include "matmul/cuda/row_panels.h"

namespace coppice::executor::cuda {

inline constexpr int kMostExperts = 512;
inline constexpr int kMostUsedExperts = 32;

/// How chosen experts are weighted: by the softmax of all scores or of theirs, or by each score's sigmoid.
enum class ExpertWeights : std::uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };

struct ExpertsShape {
  int n = 0, n_used = 0;  ///< at most kMostExperts and kMostUsedExperts; n 0: there are none
  int n_ff = 0;
  Gate gate = Gate::kSilu;
  ExpertWeights weights = ExpertWeights::kSoftmax;
  bool normalised = false;     ///< weights are divided by their sum
  float scale = 1.0F;          ///< and multiplied by this
  bool weighs_inputs = false;  ///< weights multiply what experts read, not what they give
};

/// The n_used experts of each row with the largest scores; of equal ones the first. With selection_bias, with the
/// largest weights, this added, which is forgotten then. And the weight of the feed-forward beside them, where it has a
/// gate: sigmoid(x . gate).
struct ChooseExperts {
  ExpertsShape shape;
  int n_rows = 0;
  const float* scores = nullptr;          ///< [n_rows][n]
  const float* bias = nullptr;            ///< [n], added to scores; nullptr: nothing is
  const float* selection_bias = nullptr;  ///< likewise
  const float* scales = nullptr;          ///< [n], weights are multiplied by; nullptr: they aren't
  std::int32_t* experts = nullptr;        ///< [pairs]
  float* weights = nullptr;               ///< [pairs]
  int n_embd = 0;                         ///< a multiple of 8
  const void* x = nullptr;                ///< [n_rows][n_embd] bf16
  const float* beside_gate = nullptr;     ///< [n_embd]; nullptr: there is none
  float* beside_weights = nullptr;        ///< [n_rows]
};
const char* launch(const ChooseExperts& args, const Gpu& gpu);

/// Sorts pairs by expert, those of one in their order, and brings each its row, if sorted_x is there: for few rows. A
/// thread block has all of an expert, which takes long where many rows choose the same one: then BringRows does that.
struct SortPairs {
  int n = 0, n_used = 0, n_rows = 0;
  int n_embd = 0;                            ///< a multiple of 8
  int panel_rows = 0;                        ///< of a panel at most
  const std::int32_t* experts = nullptr;     ///< [pairs]
  const void* x = nullptr;                   ///< [n_rows][n_embd] bf16
  std::int32_t* positions = nullptr;         ///< [pairs] where each is among the sorted ones
  std::int32_t* sorted_pairs = nullptr;      ///< [pairs] which pair is there
  std::int32_t* sorted_experts = nullptr;    ///< [pairs] and its expert
  void* sorted_x = nullptr;                  ///< [pairs][n_embd] bf16; nullptr: no rows are brought
  matmul::cuda::RowPanel* panels = nullptr;  ///< [most_panels()]
  std::int32_t* n_panels = nullptr;
};
const char* launch(const SortPairs& args, const Gpu& gpu);

/// Brings each sorted pair its row.
struct BringRows {
  int n_used = 0, n_rows = 0, n_embd = 0;      ///< as in SortPairs
  const std::int32_t* sorted_pairs = nullptr;  ///< [pairs]
  const void* x = nullptr;                     ///< [n_rows][n_embd] bf16
  void* sorted_x = nullptr;                    ///< [pairs][n_embd] bf16
};
const char* launch(const BringRows& args, const Gpu& gpu);

/// out = beside, weighted, + the sum of weight * (part + bias of its expert) over a row's pairs.
struct SumExperts {
  int n = 0, n_used = 0, n_rows = 0;        ///< n: of a row, a multiple of 4
  const float* parts = nullptr;             ///< [pairs][n], sorted
  const float* bias = nullptr;              ///< [experts][n]; nullptr: there is none
  const std::int32_t* experts = nullptr;    ///< [pairs]
  const std::int32_t* positions = nullptr;  ///< [pairs]
  const float* weights = nullptr;           ///< [pairs]; nullptr: 1
  const float* beside = nullptr;            ///< [n_rows][n], may be `out`; nullptr: nothing is
  const float* beside_weights = nullptr;    ///< [n_rows]; nullptr: 1
  float* out = nullptr;                     ///< [n_rows][n]
};
const char* launch(const SumExperts& args, const Gpu& gpu);

}  // namespace coppice::executor::cuda
