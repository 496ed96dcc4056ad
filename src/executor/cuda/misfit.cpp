// A layer kind on GPUs: what is refused here is what is missing. The kernel goes to *_operators.cu, its place to
// decoder_step.cpp, or to a file of its own (experts_step.cpp), its weights to device_weights.cpp, a case to
// tests/cuda.
#include "executor/cuda/misfit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <variant>

#include "attention/cuda/tree_plan.h"

namespace coppice::executor::cuda {

namespace {

using model::kNoTensor;
using model::LayerSpec;
using model::LinearSpec;
using model::ModelSpec;

constexpr std::array kHeadSizes = {64, 80, 96, 128, 256};  // launch_tree_attention's
constexpr int kMostNormed = 16384;                         // operators.h
constexpr int kMostExperts = 512, kMostUsedExperts = 32;   // expert_operators.h
constexpr int kUnit = 64;                                  // inputs of a matrix come in such pieces: quant_pack.h

bool is_there(const LinearSpec& linear) {
  return linear.weight != kNoTensor;
}

const char* of_mixer(const LayerSpec& layer) {
  const model::AttentionSpec& mixer = layer.mixer;
  if (!std::holds_alternative<std::monostate>(layer.recurrent)) return "recurrent layers";
  if (!mixer.owns_kv()) return "layers that read another one's keys";
  if (mixer.gate_in_q) return "gates among queries";
  if (!is_there(mixer.v) || mixer.v_norm != kNoTensor) return "normalised values";
  return nullptr;
}

const char* of_experts(const model::ExpertsSpec& experts) {
  if (experts.n > kMostExperts || experts.n_used > kMostUsedExperts) return "more experts than a row can choose from";
  if (experts.router_norm != kNoTensor || experts.norms.before != kNoTensor || experts.norms.behind != kNoTensor ||
      experts.shared_norm != kNoTensor)
    return "experts with norms of their own";
  return nullptr;
}

const char* of_feed_forward(const LayerSpec& layer) {
  const bool mixed = layer.experts.n > 0;
  if (mixed) {
    if (const char* why = of_experts(layer.experts)) return why;
  }
  if (!is_there(layer.feed_forward.up) ? !mixed : !is_there(layer.feed_forward.gate))
    return "layers without a gated feed-forward";
  if (mixed && layer.feed_forward.down.bias != kNoTensor) return "biases beside experts";
  if (is_there(layer.token_input.up) || layer.scale != kNoTensor) return "scaled layers";
  return nullptr;
}

std::int64_t n_out(const model::Model& model, const LinearSpec& linear) {
  return model.file->tensors()[static_cast<std::size_t>(linear.weight)].shape[1];
}

/// What a step has once for all layers.
bool are_alike(const model::Model& model, const model::ExpertsSpec& a, const model::ExpertsSpec& b) {
  return a.n == b.n && a.n_used == b.n_used && a.gating == b.gating && a.normalised == b.normalised &&
         a.scale == b.scale && a.weighs_inputs == b.weighs_inputs && a.activation == b.activation &&
         n_out(model, a.up) == n_out(model, b.up);
}

bool are_alike(const model::Model& model, std::span<const LayerSpec> layers) {
  const LayerSpec *dense = nullptr, *mixed = nullptr;
  for (const LayerSpec& layer : layers) {
    if (is_there(layer.feed_forward.up)) {
      if (dense == nullptr) dense = &layer;
      if (layer.feed_forward.activation != dense->feed_forward.activation) return false;
    }
    if (layer.experts.n > 0) {
      if (mixed == nullptr) mixed = &layer;
      if (!are_alike(model, layer.experts, mixed->experts)) return false;
    }
  }
  return true;
}

/// The first of the layers' matrices whose inputs are not whole units; nullptr: there is none.
const LinearSpec* uneven(const model::Model& model) {
  const auto n_in = [&](const LinearSpec& l) {
    return model.file->tensors()[static_cast<std::size_t>(l.weight)].shape[0];
  };
  for (const LayerSpec& layer : model.spec.layers) {
    for (const LinearSpec* linear : {&layer.mixer.o, &layer.mixer.q, &layer.feed_forward.down, &layer.experts.down})
      if (is_there(*linear) && n_in(*linear) % kUnit != 0) return linear;
  }
  return nullptr;
}

std::string of_sizes(const model::Model& model) {
  const ModelSpec& spec = model.spec;
  if (!are_alike(model, spec.layers)) return "layers of different shapes";
  for (const LayerSpec& layer : spec.layers) {
    const model::HeadsSpec& heads = layer.mixer.heads;
    if (std::ranges::find(kHeadSizes, heads.head_dim) == kHeadSizes.end())
      return fmt::format("heads of {} values", heads.head_dim);
    if (heads.n_head / heads.n_kv_head > attention::cuda::kItemQueries)
      return fmt::format("{} heads that share keys", heads.n_head / heads.n_kv_head);
  }
  if (const LinearSpec* linear = uneven(model)) {
    const std::int64_t n = model.file->tensors()[static_cast<std::size_t>(linear->weight)].shape[0];
    return fmt::format("a matrix of {} inputs, which is no multiple of {}", n, kUnit);
  }
  if (spec.n_embd > kMostNormed) return fmt::format("rows of {} values", spec.n_embd);
  return {};
}

}  // namespace

std::string misfit(const model::Model& model) {
  if (model.spec.token_inputs.width > 0) return "embeddings of each layer";
  for (const LayerSpec& layer : model.spec.layers) {
    for (const char* why : {of_feed_forward(layer), of_mixer(layer)}) {
      if (why != nullptr) return why;
    }
  }
  return of_sizes(model);
}

}  // namespace coppice::executor::cuda
