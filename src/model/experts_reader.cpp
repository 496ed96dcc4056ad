#include "model/experts_reader.h"

#include <array>
#include <cmath>
#include <vector>

namespace coppice::model {

namespace {

/// The file's word for it, if it has one.
Gating read_gating(const Metadata& m, Gating of_family) {
  constexpr int kUnsaid = 0, kMost = 3;
  switch (m.size("expert_gating_func", kMost, kUnsaid, kUnsaid)) {
    case 1:
      return Gating::kSoftmax;
    case 2:
      return Gating::kSigmoid;
    case 3:
      return Gating::kSoftmaxOfChosen;
    default:
      return of_family;
  }
}

}  // namespace

ExpertsSpec read_experts(const Metadata& m, const TensorTable& tensors, int n_embd, int n_ff, const std::string& p,
                         const ExpertTraits& traits, Activation activation) {
  constexpr int kMostExperts = 1 << 12;
  ExpertsSpec experts{.n = m.size("expert_count", kMostExperts),
                      .gating = read_gating(m, traits.gating),
                      .normalised = m.truth("expert_weights_norm", traits.normalised),
                      .scale = m.factor("expert_weights_scale", 1.0F),
                      .weighs_inputs = traits.weighs_inputs,
                      .activation = activation};
  experts.n_used = m.size("expert_used_count", experts.n);
  if (m.size("expert_group_count", kMostExperts, 1, 0) > 1) m.refuse("experts in groups are not built yet");
  n_ff = m.size("expert_feed_forward_length", 1 << 22, n_ff);
  experts.router = tensors.linear(p + "ffn_gate_inp", n_embd, experts.n);
  experts.selection_bias = tensors.optional(p + "exp_probs_b.bias", {experts.n});
  if (const std::string both = p + "ffn_gate_up_exps"; tensors.has(both + ".weight")) {
    const std::array sizes = {std::int64_t{n_ff}, std::int64_t{n_ff}};
    const std::vector<LinearSpec> parts = tensors.split_each(both, n_embd, sizes, experts.n);
    experts.gate = parts[0], experts.up = parts[1];
  } else {
    experts.gate = tensors.linears(p + "ffn_gate_exps", n_embd, n_ff, experts.n);
    experts.up = tensors.linears(p + "ffn_up_exps", n_embd, n_ff, experts.n);
  }
  experts.down = tensors.linears(p + "ffn_down_exps", n_ff, n_embd, experts.n);
  experts.norms = {.before = tensors.optional(p + "pre_ffw_norm_2.weight", {n_embd}),
                   .behind = tensors.optional(p + "post_ffw_norm_2.weight", {n_embd})};
  experts.shared_norm = tensors.optional(p + "post_ffw_norm_1.weight", {n_embd});
  experts.router_norm = tensors.optional(p + "ffn_gate_inp.scale", {n_embd});
  if (experts.router_norm != kNoTensor) experts.router_scale = 1.0F / std::sqrt(static_cast<float>(n_embd));
  experts.shared_gate = tensors.optional(p + "ffn_gate_inp_shexp.weight", {n_embd});
  experts.scales = tensors.optional(p + "ffn_down_exps.scale", {experts.n});
  return experts;
}

}  // namespace coppice::model
