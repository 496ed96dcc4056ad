// ModelSpec: what to compute, as data. A family (families.h) fills it from a GGUF file; every executor builds
// its graph or its kernels from it. Plain data, no tensor library: an executor for another device can read it.
//
// Tensors are named by TensorId, an index into GgufFile::tensors(); kNoTensor where a model has none.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/gguf_file.h"
#include "model/load_error.h"

namespace coppice::model {

using TensorId = int;
inline constexpr TensorId kNoTensor = -1;
inline constexpr TensorId kUnitNorm = -2;  ///< in place of a norm's weights: there is a norm, and its weights are all 1

/// What stretches positions beyond the context that a model was first trained for (YaRN, Peng et al. 2023,
/// section 3.2): fast pairs keep their angles, slow ones are scaled, between them the two are mixed.
struct YarnSpec {
  float beta_fast = 32,
        beta_slow = 1;       ///< turns in the original context, of the last fast pair and of the first slow one
  int original_context = 0;  ///< tokens
  bool whole_pairs = true;   ///< the mixing begins and ends at pairs, not between them
  friend bool operator==(const YarnSpec&, const YarnSpec&) = default;
};

/// M-RoPE (Qwen2-VL, Wang et al. 2024, section 2.1): a position has three parts, time, height and width, and each pair
/// of a head turns by one of them. In texts all three are the same.
struct RopeSections {
  std::array<int, 3> pairs{};  ///< that turn by each of them, dims / 2 in all
  bool interleaved = false;    ///< pairs take turns (Qwen3-VL); otherwise each part has its pairs side by side
  friend bool operator==(const RopeSections&, const RopeSections&) = default;
};

/// Rotary positions: pairs of values of each head turn together.
struct RopeSpec {
  bool halves = false;  ///< pair i is values i and i + dims / 2; otherwise the neighbours 2 i and 2 i + 1
  int dims = 0;         ///< of each head, from the start; the rest doesn't turn
  float base = 10000;
  float freq_scale = 1;               ///< 1 / factor of linear scaling, or of YaRN
  TensorId freq_factors = kNoTensor;  ///< f32 [dims / 2]: angles are divided by these (Llama 3, LongRoPE)
  std::optional<YarnSpec> yarn;
  float magnitude = 1;                   ///< what turned values are multiplied by
  std::optional<RopeSections> sections;  ///< none: a position is one number
  friend bool operator==(const RopeSpec&, const RopeSpec&) = default;
};

/// A matrix [n_in, n_out] and its bias [n_out], which most models lack.
struct LinearSpec {
  TensorId weight = kNoTensor;
  TensorId bias = kNoTensor;
};

/// Query head h reads key head h / (n_head / n_kv_head).
struct HeadsSpec {
  int n_head = 0, n_kv_head = 0;
  int head_dim = 0;
  friend bool operator==(const HeadsSpec&, const HeadsSpec&) = default;
};

/// The attention mixer: o(softmax(q k^T) v), or with a gate o(sigmoid(gate(x)) * softmax(q k^T) v).
struct AttentionSpec {
  HeadsSpec heads;         ///< n_head 0: the layer doesn't attend
  LinearSpec gate;         ///< [n_embd, n_head], a factor for each head; or as wide as q. Most models lack it
  bool gate_in_q = false;  ///< q is twice as wide: of each head its query, then its gate
  LinearSpec q, k, v, o;   ///< v without a matrix: values are what the matrix k gives; then v_norm is set
  /// RMS norms of queries and keys before they turn: f32 [head_dim], of each head; or as wide as q or k, of all heads
  /// at once.
  TensorId q_norm = kNoTensor, k_norm = kNoTensor;
  TensorId v_norm = kNoTensor;  ///< of values, in the same forms
  TensorId sinks = kNoTensor;   ///< f32 [n_head]: a score beside the keys' in each row's softmax, which has no value
  int rope = 0;                 ///< index into ModelSpec::ropes, or kNoRope
  int window = 0;               ///< tokens a query sees, itself included; 0: all
  /// The window doesn't end at the query: it is the one of [0, window), [window, 2 * window), ... that the query lies
  /// in.
  bool chunked = false;
  /// Rows of a picture don't see each other both ways here, as they do in the model's other layers.
  bool causal = false;
  bool sharpened = false;  ///< queries are multiplied as ModelSpec::temperature says
  int kv_layer = kOwnKv;   ///< an earlier layer, whose keys and values are read; this one has no k and v

  static constexpr int kNoRope = -1, kOwnKv = -1;
  bool attends() const { return heads.n_head > 0; }
  bool owns_kv() const { return attends() && kv_layer == kOwnKv; }
  std::array<const LinearSpec*, 5> linears() const { return {&q, &k, &v, &gate, &o}; }
};

/// A convolution along a sequence, of each channel by itself: row t becomes bias + sum over i of weights[i] * x[t -
/// n_taps + 1 + i]. Rows before the first one are zeros.
struct ConvSpec {
  int n_taps = 0, n_channels = 0;
  TensorId weights = kNoTensor;  ///< f32 [n_taps, n_channels]
  TensorId bias = kNoTensor;     ///< f32 [n_channels]
};

/// The gated short convolution (LFM2): out(c * conv(b * x)). in gives b, c and x, one behind the other.
struct ShortConvSpec {
  ConvSpec conv;
  LinearSpec in, out;

  std::array<const LinearSpec*, 2> linears() const { return {&in, &out}; }
};

/// What a head of linear attention writes into its matrix S, [key_dim, value_dim], for a row with the query q, the key
/// k, the value v, and the gates beta and alpha; with d = softplus(alpha + dt_bias), S shrinks to exp(a * d) * S first.
enum class StateRule : std::uint8_t {
  /// The gated delta net (Yang, Kautz, Hatamizadeh 2025, "Gated Delta Networks", section 3.1): S += k (sigmoid(beta) *
  /// (v - S^T k))^T, where q and
  /// k have length 1. The row becomes norm(S^T q / sqrt(key_dim)) * silu(z), each head by itself.
  kDelta,
  /// Mamba-2 (Dao, Gu 2024, "Transformers are SSMs", section 3; B is k, C is q): S += k (d * v)^T. The row becomes
  /// norm((S^T q + skip * v) * silu(z)), all heads of a key head together.
  kMamba2,
};

/// Linear attention with decay: out(y), y as StateRule says of silu(conv(qkv(x))), whose channels are q, k, v of all
/// heads, one behind the other; with kMamba2 v, k, q.
struct LinearAttentionSpec {
  StateRule rule = StateRule::kDelta;
  int n_heads = 0, n_key_heads = 0;  ///< of values, gates and S; of queries and keys
  int key_dim = 0, value_dim = 0;    ///< of a head
  bool in_turns = false;             ///< head h reads key head h % n_key_heads; otherwise h / (n_heads / n_key_heads)
  ConvSpec conv;
  LinearSpec qkv, z;
  LinearSpec alpha,
      beta;  ///< [n_embd, n_heads]; without alpha beta gives for each key head its heads' betas, then their alphas
  TensorId a = kNoTensor, dt_bias = kNoTensor;  ///< f32 [n_heads]; a is negative
  TensorId skip = kNoTensor;                    ///< f32 [n_heads]; kMamba2 only
  /// RMS, f32: kDelta [value_dim], kMamba2 [n_heads / n_key_heads * value_dim, n_key_heads]
  TensorId norm = kNoTensor;
  LinearSpec out;

  std::array<const LinearSpec*, 5> linears() const { return {&qkv, &z, &alpha, &beta, &out}; }
};

/// A mixer that keeps a state in place of keys and values.
using RecurrentSpec = std::variant<std::monostate, ShortConvSpec, LinearAttentionSpec>;

/// SiLU is z / (1 + exp(-z)); GELU its approximation by tanh (Hendrycks & Gimpel 2016). Clamped: with z = min(gate(x),
/// 7) the gated value is z / (1 + exp(-1.702 z)) * (1 + clamp(up(x), -7, 7)) (gpt-oss).
enum class Activation : std::uint8_t { kSilu, kGelu, kClamped };

/// The gated feed-forward: down(activation(gate(x)) * up(x)). A layer may lack it.
struct GatedSpec {
  LinearSpec gate, up, down;
  Activation activation = Activation::kSilu;

  std::array<const LinearSpec*, 3> linears() const { return {&gate, &up, &down}; }
};

/// How a row's experts are weighted: by the softmax of all scores or of the chosen ones', or by each score's sigmoid.
enum class Gating : std::uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };

/// RMS norms of what a part of a layer reads, and of what it gives; f32 [n_embd]. A model has one or the other or both.
struct NormsSpec {
  TensorId before = kNoTensor, behind = kNoTensor;
};

/// A mixture of experts (Shazeer et al. 2017): a row goes through n_used of n gated feed-forwards, those with the
/// largest scores; the result is their sum, weighted.
struct ExpertsSpec {
  int n = 0, n_used = 0;  ///< n = 0: the layer has none
  /// Of what experts read, and of their sum; without the former they read what the feed-forward reads.
  NormsSpec norms;
  LinearSpec router;  ///< [n_embd, n]: scores of what the experts read; or, with a norm of its own, of the layer's x:
  TensorId router_norm = kNoTensor;  ///< RMS, f32 [n_embd]; its result is multiplied by router_scale
  float router_scale = 1;
  Gating gating = Gating::kSoftmax;
  /// f32 [n]: added to the weights of all experts to choose some, and then forgotten.
  TensorId selection_bias = kNoTensor;
  bool normalised = false;      ///< weights are divided by their sum
  float scale = 1;              ///< and multiplied by this
  TensorId scales = kNoTensor;  ///< f32 [n]: a factor for each expert, too
  bool weighs_inputs = false;   ///< weights multiply what experts read, not what they give
  LinearSpec gate, up, down;    ///< [n_in, n_out, n], their biases f32 [n_out, n]
  Activation activation = Activation::kSilu;
  /// Of the layer's feed-forward beside the experts: f32 [n_embd], it is multiplied by sigmoid(shared_gate * x); RMS
  /// norm behind it, f32 [n_embd].
  TensorId shared_gate = kNoTensor, shared_norm = kNoTensor;

  std::array<const LinearSpec*, 4> linears() const { return {&router, &gate, &up, &down}; }
};

/// What a layer adds of the tokens' own embeddings for it (TokenInputsSpec), t: norm(up(gelu(down(x)) * t)).
struct TokenInputSpec {
  LinearSpec down, up;        ///< [n_embd, width] and back
  TensorId norm = kNoTensor;  ///< RMS, f32 [n_embd]

  std::array<const LinearSpec*, 2> linears() const { return {&down, &up}; }
};

/// x += s * behind(mixer(before(x))), then x += s * behind(feed_forward(before(x)) + experts(before(x))), with norms of
/// their own, and s = ModelSpec::residual_scale. The feed-forward beside experts is what others call the shared expert.
/// Then, where the model has them, x += s * token_input(x), and x *= scale. Another kind of a part goes beside the ones
/// above, and is built in a file of its own in each executor.
struct LayerSpec {
  NormsSpec mixer_norms;
  AttentionSpec mixer;
  RecurrentSpec recurrent;  ///< in place of attention: one of the two
  NormsSpec feed_forward_norms;
  GatedSpec feed_forward;
  ExpertsSpec experts;
  TokenInputSpec token_input;
  TensorId scale = kNoTensor;  ///< f32 [1]
};

/// Of each token a small vector for each layer: (embedding + norm(x * projection)) / sqrt(2), x being the decoder's
/// input, before the layers. The embedding is scaled by sqrt(width), the product by 1 / sqrt(n_embd).
struct TokenInputsSpec {
  int width = 0;                   ///< of a layer's vector; 0: the model has none
  TensorId embedding = kNoTensor;  ///< [n_layers * width, n_vocab]
  LinearSpec projection;           ///< [n_embd, n_layers * width]
  TensorId norm = kNoTensor;       ///< RMS of each layer's vector, f32 [width]
};

/// Queries at position p are multiplied by 1 + scale * ln(1 + floor((p + offset) / length)), so that attention stays
/// sharp in long contexts (Llama 4, Mistral 3). scale 0: they aren't.
struct TemperatureSpec {
  float scale = 0;
  int length = 0;  ///< tokens
  int offset = 0;  ///< tokens
};

/// Which hidden states make an embedding, as the file says.
enum class Pooling : std::uint8_t {
  kUnsaid,
  kMean,   ///< the mean of all tokens'
  kLast,   ///< the last token's
  kOther,  ///< what makes sense only where a token sees those behind it, or needs a head that the decoder lacks
};

struct ModelSpec {
  std::string name;
  std::string architecture;
  int n_vocab = 0;
  int n_embd = 0;
  std::int32_t context_length = 0;  ///< tokens it was trained for
  float norm_eps = 0;
  float norm_eps_behind = 0;  ///< of NormsSpec::behind
  float attention_scale = 0;
  float attention_softcap = 0;  ///< c: scores become c * tanh(score / c); 0: they don't
  TemperatureSpec temperature;
  TensorId embedding_norm = kNoTensor;  ///< RMS, of scaled embeddings
  float embedding_scale = 1;
  float residual_scale = 1;
  float logit_scale = 1;
  float logit_softcap = 0;  ///< as attention_softcap, of scaled logits
  std::vector<RopeSpec> ropes;
  TensorId embedding = kNoTensor;  ///< [n_embd, n_vocab]
  /// DeepStack (Meng et al. 2024): rows that are no tokens have further planes of n_embd values, one added behind each
  /// of so many first layers.
  int n_planes = 0;
  TensorId output_norm = kNoTensor;  ///< f32 [n_embd]
  LinearSpec output;                 ///< [n_embd, n_vocab]; the embedding itself when tied
  TokenInputsSpec token_inputs;
  std::vector<LayerSpec> layers;
  Pooling pooling = Pooling::kUnsaid;

  int embedding_size() const { return n_embd * (1 + n_planes); }  ///< values of a row that is no token
  /// Positions have three parts.
  bool has_sections() const;

  /// All matrices that rows are multiplied by: the layers' in order, then those of the whole model.
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

/// Whether its file was written since, and has another digest now.
bool was_changed(const Model& model);

}  // namespace coppice::model
