#include "executor/ggml/graph/expert_choice.h"

#include <limits>

#include "executor/ggml/graph/product.h"

namespace coppice::executor {

namespace {

constexpr float kSmallestSum = 6.103515625e-5F;  ///< weights that vanish are not divided by less: as ggml does it

/// [n, n_rows]
ggml_tensor* weights_of_all(GraphBuilder& b, model::Gating gating, ggml_tensor* scores) {
  switch (gating) {
    case model::Gating::kSoftmax:
      return ggml_soft_max(b.context, scores);
    case model::Gating::kSigmoid:
      return ggml_sigmoid(b.context, scores);
    case model::Gating::kSoftmaxOfChosen:
      break;
  }
  return scores;
}

}  // namespace

ExpertChoice choose_experts(GraphBuilder& b, const model::ExpertsSpec& spec, ggml_tensor* x) {
  ggml_context* c = b.context;
  const std::int64_t n_rows = x->ne[1];
  ggml_tensor* scores = product(b, {x}, spec.router);
  ggml_tensor* all = weights_of_all(b, spec.gating, scores);
  // Where nothing is added the scores choose alike, and more exactly: weights near 0 or 1 have no more bits.
  ggml_tensor* bias = b.parts.weights->plain(spec.selection_bias);
  ggml_tensor* ids = ggml_argsort_top_k(c, bias ? ggml_add(c, all, bias) : scores, spec.n_used);
  ggml_tensor* weights = ggml_get_rows(c, ggml_reshape_3d(c, all, 1, spec.n, n_rows), ids);
  weights = ggml_reshape_2d(c, weights, spec.n_used, n_rows);
  if (spec.gating == model::Gating::kSoftmaxOfChosen) {
    weights = ggml_soft_max(c, weights);
  } else if (spec.normalised) {
    ggml_tensor* sum = ggml_clamp(c, ggml_sum_rows(c, weights), kSmallestSum, std::numeric_limits<float>::infinity());
    weights = ggml_div(c, weights, sum);
  }
  if (spec.scale != 1) weights = ggml_scale(c, weights, spec.scale);
  weights = ggml_reshape_3d(c, weights, 1, spec.n_used, n_rows);
  if (ggml_tensor* scales = b.parts.weights->plain(spec.scales)) {
    scales = ggml_repeat_4d(c, ggml_reshape_2d(c, scales, 1, spec.n), 1, spec.n, n_rows, 1);
    weights = ggml_mul(c, weights, ggml_get_rows(c, scales, ids));
  }
  return {ids, weights};
}

}  // namespace coppice::executor
