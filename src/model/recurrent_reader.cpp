#include "model/recurrent_reader.h"

#include <algorithm>
#include <array>

namespace coppice::model {

namespace {

constexpr int kMostHeads = 1 << 12, kLongest = 1 << 12;
/// Heads are computed in whole vectors, which have at most so many values.
constexpr int kVector = 16;

ConvSpec read_conv(const Metadata& m, const TensorTable& tensors, const char* taps, int n_channels,
                   const std::string& name) {
  constexpr int kLeast = 2, kMost = 4;
  ConvSpec conv{.n_taps = m.size(taps, kLongest), .n_channels = n_channels};
  if (conv.n_taps < kLeast || conv.n_taps > kMost) {
    m.refuse("{} = {}: convolutions over {} to {} rows are built", m.key(taps), conv.n_taps, kLeast, kMost);
  }
  if (n_channels % kVector != 0) m.refuse("a convolution of {} channels is not built", n_channels);
  conv.weights = tensors.require_f32(name + ".weight", {conv.n_taps, n_channels});
  conv.bias = tensors.optional(name + ".bias", {n_channels});
  return conv;
}

ShortConvSpec read_short_conv(const Metadata& m, const TensorTable& tensors, int n_embd, const std::string& p) {
  return {.conv = read_conv(m, tensors, "shortconv.l_cache", n_embd, p + "shortconv.conv"),
          .in = tensors.linear(p + "shortconv.in_proj", n_embd, 3 * std::int64_t{n_embd}),
          .out = tensors.linear(p + "shortconv.out_proj", n_embd, n_embd)};
}

/// Heads and their sizes, checked against each other.
LinearAttentionSpec read_shape(const Metadata& m, StateRule rule) {
  LinearAttentionSpec spec{.rule = rule,
                           .n_heads = m.size("ssm.time_step_rank", kMostHeads),
                           .n_key_heads = m.size("ssm.group_count", kMostHeads),
                           .key_dim = m.size("ssm.state_size", kLongest)};
  const int inner = m.size("ssm.inner_size", 1 << 20);
  spec.value_dim = inner / spec.n_heads;
  const bool whole = inner % spec.n_heads == 0 && spec.n_heads % spec.n_key_heads == 0;
  if (!whole || spec.value_dim % kVector != 0 || spec.key_dim % kVector != 0 || spec.value_dim > kLongest) {
    m.refuse("{} states of {} x {}/{} values over {} key heads are not built", spec.n_heads, spec.key_dim, inner,
             spec.n_heads, spec.n_key_heads);
  }
  return spec;
}

LinearAttentionSpec read_delta(const Metadata& m, const TensorTable& tensors, int n_embd, const std::string& p,
                               bool one_gates) {
  LinearAttentionSpec spec = read_shape(m, StateRule::kDelta);
  const std::int64_t keys = std::int64_t{spec.n_key_heads} * spec.key_dim;
  const std::int64_t values = std::int64_t{spec.n_heads} * spec.value_dim, channels = 2 * keys + values;
  spec.in_turns = !one_gates;
  spec.conv = read_conv(m, tensors, "ssm.conv_kernel", static_cast<int>(channels), p + "ssm_conv1d");
  spec.qkv = tensors.linear(p + "attn_qkv", n_embd, channels);
  spec.z = tensors.linear(p + "attn_gate", n_embd, values);
  if (one_gates) {
    spec.beta = tensors.linear(p + "ssm_ba", n_embd, 2 * std::int64_t{spec.n_heads});
  } else {
    spec.alpha = tensors.linear(p + "ssm_alpha", n_embd, spec.n_heads);
    spec.beta = tensors.linear(p + "ssm_beta", n_embd, spec.n_heads);
  }
  spec.a = tensors.require(p + "ssm_a", {spec.n_heads});
  spec.dt_bias = tensors.require(p + "ssm_dt.bias", {spec.n_heads});
  spec.norm = tensors.require(p + "ssm_norm.weight", {spec.value_dim});
  spec.out = tensors.linear(p + "ssm_out", values, n_embd);
  return spec;
}

LinearAttentionSpec read_mamba2(const Metadata& m, const TensorTable& tensors, int n_embd, const std::string& p) {
  LinearAttentionSpec spec = read_shape(m, StateRule::kMamba2);
  const std::int64_t keys = std::int64_t{spec.n_key_heads} * spec.key_dim;
  const std::int64_t values = std::int64_t{spec.n_heads} * spec.value_dim, channels = 2 * keys + values;
  spec.conv = read_conv(m, tensors, "ssm.conv_kernel", static_cast<int>(channels), p + "ssm_conv1d");
  const std::array sizes = {values, channels, std::int64_t{spec.n_heads}};
  const std::vector<LinearSpec> parts = tensors.split(p + "ssm_in", n_embd, sizes);
  spec.z = parts[0], spec.qkv = parts[1], spec.alpha = parts[2];
  spec.a = tensors.require_f32(p + "ssm_a", {1, spec.n_heads});
  spec.skip = tensors.require_f32(p + "ssm_d", {1, spec.n_heads});
  spec.dt_bias = tensors.require(p + "ssm_dt.bias", {spec.n_heads});
  spec.norm = tensors.require_f32(p + "ssm_norm.weight", {values / spec.n_key_heads, spec.n_key_heads});
  spec.out = tensors.linear(p + "ssm_out", values, n_embd);
  return spec;
}

}  // namespace

std::vector<bool> recurrent_layers(const Metadata& m, int n_layers, RecurrentKind kind) {
  std::vector<bool> recurrent(static_cast<std::size_t>(n_layers), false);
  if (kind == RecurrentKind::kNone) return recurrent;
  if (kind == RecurrentKind::kShortConv || kind == RecurrentKind::kMamba2) {
    const auto key_heads = m.list("attention.head_count_kv", n_layers);
    for (std::size_t i = 0; key_heads && i < recurrent.size(); ++i) recurrent[i] = (*key_heads)[i] == 0;
  } else {
    const auto named = m.list("attention.recurrent_layers", n_layers);
    const auto every = static_cast<std::size_t>(m.size("full_attention_interval", 1 << 12, 4));
    for (std::size_t i = 0; i < recurrent.size(); ++i) recurrent[i] = named ? (*named)[i] != 0 : (i + 1) % every != 0;
  }
  if (std::ranges::count(recurrent, false) == 0) {
    m.refuse("no layer attends: models of recurrent layers alone are not built, because cached prefixes stand on keys");
  }
  return recurrent;
}

RecurrentSpec read_recurrent(const Metadata& m, const TensorTable& tensors, int n_embd, const std::string& p,
                             RecurrentKind kind) {
  switch (kind) {
    case RecurrentKind::kShortConv:
      return read_short_conv(m, tensors, n_embd, p);
    case RecurrentKind::kMamba2:
      return read_mamba2(m, tensors, n_embd, p);
    case RecurrentKind::kDelta:
      return read_delta(m, tensors, n_embd, p, false);
    case RecurrentKind::kDeltaOneGates:
      return read_delta(m, tensors, n_embd, p, true);
    case RecurrentKind::kNone:
      break;
  }
  return {};
}

}  // namespace coppice::model
