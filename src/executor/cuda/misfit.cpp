// A layer kind on GPUs: what is refused here is what is missing. The kernel goes to *_operators.cu, its place to decoder_step.cpp, its weights to
// device_weights.cpp, a case to tests/cuda.
#include "executor/cuda/misfit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <variant>

#include "attention/cuda/tree_plan.h"

namespace coppice::executor::cuda {

namespace {

using model::kNoTensor;
using model::LayerSpec;
using model::LinearSpec;
using model::ModelSpec;
using model::TensorId;

constexpr std::array kHeadSizes = {64, 80, 96, 128, 256};  // launch_tree_attention's
constexpr int kMostNormed = 16384;                         // operators.h
constexpr int kUnit = 64;                                  // inputs of a matrix come in such pieces: quant_pack.h

bool has_weights(TensorId norm) {
  return norm >= 0;  // neither kNoTensor nor kUnitNorm
}
bool is_there(const LinearSpec& linear) {
  return linear.weight != kNoTensor;
}

const char* of_model(const ModelSpec& spec) {
  if (spec.attention_softcap != 0 || spec.logit_softcap != 0) return "softcaps";
  if (spec.logit_scale != 1 || spec.residual_scale != 1) return "scaled logits or residuals";
  if (spec.embedding_norm != kNoTensor) return "a norm of embeddings";
  if (spec.token_inputs.width > 0) return "embeddings of each layer";
  if (spec.output.bias != kNoTensor) return "a bias of the logits";
  if (!has_weights(spec.output_norm)) return "a last norm without weights";
  return nullptr;
}

const char* of_mixer(const model::Model& model, const LayerSpec& layer) {
  const model::AttentionSpec& mixer = layer.mixer;
  const auto width = [&](TensorId id) { return model.file->tensors()[static_cast<std::size_t>(id)].shape[0]; };
  if (!std::holds_alternative<std::monostate>(layer.recurrent)) return "recurrent layers";
  if (!mixer.owns_kv()) return "layers that read another one's keys";
  if (is_there(mixer.gate) || mixer.gate_in_q) return "gated attention";
  if (mixer.sinks != kNoTensor) return "attention sinks";
  if (mixer.chunked) return "attention in chunks";
  if (mixer.sharpened && model.spec.temperature.scale != 0) return "queries that are scaled by their position";
  if (!is_there(mixer.v) || mixer.v_norm != kNoTensor) return "normalised values";
  if (mixer.o.bias != kNoTensor) return "a bias behind attention";
  for (const TensorId norm : {mixer.q_norm, mixer.k_norm}) {
    if (norm != kNoTensor && (!has_weights(norm) || width(norm) != mixer.heads.head_dim))
      return "norms over all heads at once";
  }
  return nullptr;
}

const char* of_feed_forward(const LayerSpec& layer) {
  if (layer.experts.n > 0) return "experts";
  if (!is_there(layer.feed_forward.gate)) return "layers without a gated feed-forward";
  if (layer.feed_forward.activation == model::Activation::kClamped) return "clamped gates";
  for (const LinearSpec* linear : layer.feed_forward.linears()) {
    if (linear->bias != kNoTensor) return "biases in the feed-forward";
  }
  if (is_there(layer.token_input.up) || layer.scale != kNoTensor) return "scaled layers";
  return nullptr;
}

const char* of_norms(const LayerSpec& layer, const ModelSpec& spec) {
  for (const model::NormsSpec& norms : {layer.mixer_norms, layer.feed_forward_norms}) {
    if (!has_weights(norms.before)) return "layers without norms before them";
    if (norms.behind == kNoTensor) continue;
    if (!has_weights(norms.behind) || spec.norm_eps_behind != spec.norm_eps)
      return "norms behind layers of another kind";
  }
  return nullptr;
}

std::int64_t n_out(const model::Model& model, const LinearSpec& linear) {
  return model.file->tensors()[static_cast<std::size_t>(linear.weight)].shape[1];
}

std::string of_sizes(const model::Model& model) {
  const ModelSpec& spec = model.spec;
  const model::HeadsSpec& heads = spec.layers.front().mixer.heads;
  const auto same = [&](const LayerSpec& layer) {
    return layer.mixer.heads == heads && layer.feed_forward.activation == spec.layers.front().feed_forward.activation &&
           n_out(model, layer.feed_forward.up) == n_out(model, spec.layers.front().feed_forward.up);
  };
  if (!std::ranges::all_of(spec.layers, same)) return "layers of different shapes";
  if (std::ranges::find(kHeadSizes, heads.head_dim) == kHeadSizes.end())
    return fmt::format("heads of {} values", heads.head_dim);
  if (heads.n_head / heads.n_kv_head > attention::cuda::kItemQueries)
    return fmt::format("{} heads that share keys", heads.n_head / heads.n_kv_head);
  const std::int64_t n_ff = n_out(model, spec.layers.front().feed_forward.up);
  for (const std::int64_t n : {std::int64_t{spec.n_embd}, n_ff, std::int64_t{heads.n_head} * heads.head_dim}) {
    if (n % kUnit != 0) return fmt::format("a matrix of {} inputs, which is no multiple of {}", n, kUnit);
  }
  if (spec.n_embd > kMostNormed) return fmt::format("rows of {} values", spec.n_embd);
  return {};
}

}  // namespace

std::string misfit(const model::Model& model) {
  if (const char* why = of_model(model.spec)) return why;
  for (const LayerSpec& layer : model.spec.layers) {
    for (const char* why : {of_feed_forward(layer), of_mixer(model, layer), of_norms(layer, model.spec)}) {
      if (why != nullptr) return why;
    }
  }
  return of_sizes(model);
}

}  // namespace coppice::executor::cuda
