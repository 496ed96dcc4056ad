// The llama family: Llama, Mistral, SmolLM and their many children.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "model/families.h"
#include "model/load_error.h"

namespace coppice::model {

namespace {

constexpr std::int32_t kF32 = 0;  // GGUF tensor type

/// Looks tensors up by name and insists on their shapes.
class TensorTable {
 public:
  explicit TensorTable(const GgufFile& file) : file_(file) {}

  TensorId require(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const TensorId id = optional(name, shape);
    if (id == kNoTensor) throw LoadError(fmt::format("{} lacks the tensor {}", file_.path(), name));
    return id;
  }

  TensorId optional(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const TensorId id = file_.find(name);
    if (id < 0) return kNoTensor;
    const TensorInfo& t = file_.tensors()[static_cast<std::size_t>(id)];
    if (t.shape != shape) {
      throw LoadError(fmt::format("{}: tensor {} has the shape [{}] where [{}] is needed", file_.path(), name,
                                  fmt::join(t.shape, ", "), fmt::join(shape, ", ")));
    }
    if (shape.size() == 1 && t.type != kF32) {
      throw LoadError(fmt::format("{}: tensor {} has the type {} where F32 is needed", file_.path(), name,
                                  tensor_type_name(t.type)));
    }
    return id;
  }

  LinearSpec linear(const std::string& name, std::int64_t n_in, std::int64_t n_out) const {
    return {require(name + ".weight", {n_in, n_out}), optional(name + ".bias", {n_out})};
  }

 private:
  const GgufFile& file_;
};

int small_integer(const GgufFile& file, const std::string& key, std::int64_t value, std::int64_t max) {
  if (value < 1 || value > max) {
    throw LoadError(fmt::format("{}: metadata {} = {} is out of range", file.path(), key, value));
  }
  return static_cast<int>(value);
}

int require_small(const GgufFile& file, const std::string& key, std::int64_t max) {
  return small_integer(file, key, file.require_integer(key), max);
}

RopeSpec read_rope(const GgufFile& file, const ModelSpec& spec, const TensorTable& tensors) {
  RopeSpec rope;
  const std::string prefix = spec.architecture + ".rope.";
  const std::string dims = prefix + "dimension_count";
  rope.dims = small_integer(file, dims, file.integer(dims).value_or(spec.head_dim), spec.head_dim);
  if (rope.dims % 2 != 0) throw LoadError(fmt::format("{}: {} = {} is odd", file.path(), dims, rope.dims));
  rope.base = static_cast<float>(file.real(prefix + "freq_base").value_or(10000.0));
  const std::string scaling = file.text(prefix + "scaling.type").value_or("linear");
  const double factor = file.real(prefix + "scaling.factor").value_or(file.real(prefix + "scale_linear").value_or(0.0));
  if (scaling == "linear") {
    rope.freq_scale = factor == 0.0 ? 1.0F : static_cast<float>(1.0 / factor);
  } else if (scaling != "none") {
    throw LoadError(fmt::format("{} scales its positions by '{}'; none and linear are known", file.path(), scaling));
  }
  if (!(rope.base > 0) || !(rope.freq_scale > 0) || !std::isfinite(rope.base) || !std::isfinite(rope.freq_scale)) {
    throw LoadError(
        fmt::format("{}: rope base {} and scale {} make no sense", file.path(), rope.base, rope.freq_scale));
  }
  rope.freq_factors = tensors.optional("rope_freqs.weight", {rope.dims / 2});
  return rope;
}

LayerSpec read_layer(const ModelSpec& spec, int n_ff, const TensorTable& tensors, int i) {
  const std::string p = fmt::format("blk.{}.", i);
  const std::int64_t q = std::int64_t{spec.n_head} * spec.head_dim;
  const std::int64_t kv = std::int64_t{spec.n_kv_head} * spec.head_dim;
  LayerSpec layer;
  layer.mixer_norm = tensors.require(p + "attn_norm.weight", {spec.n_embd});
  layer.mixer = {.q = tensors.linear(p + "attn_q", spec.n_embd, q),
                 .k = tensors.linear(p + "attn_k", spec.n_embd, kv),
                 .v = tensors.linear(p + "attn_v", spec.n_embd, kv),
                 .o = tensors.linear(p + "attn_output", q, spec.n_embd)};
  layer.feed_forward_norm = tensors.require(p + "ffn_norm.weight", {spec.n_embd});
  layer.feed_forward = {.gate = tensors.linear(p + "ffn_gate", spec.n_embd, n_ff),
                        .up = tensors.linear(p + "ffn_up", spec.n_embd, n_ff),
                        .down = tensors.linear(p + "ffn_down", n_ff, spec.n_embd)};
  return layer;
}

/// Heads, sizes and constants, checked against each other.
ModelSpec read_sizes(const GgufFile& file) {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.name = file.text("general.name").value_or(std::filesystem::path(file.path()).stem().string());
  if (const std::string key = "llama.expert_count"; file.integer(key).value_or(0) > 0) {
    throw LoadError(fmt::format("{} is a mixture of experts, which is not built yet", file.path()));
  }
  spec.n_embd = require_small(file, "llama.embedding_length", 1 << 20);
  spec.n_head = require_small(file, "llama.attention.head_count", 1 << 12);
  const std::string kv = "llama.attention.head_count_kv";
  spec.n_kv_head = small_integer(file, kv, file.integer(kv).value_or(spec.n_head), spec.n_head);
  spec.context_length = require_small(file, "llama.context_length", 1 << 30);
  const std::string key_length = "llama.attention.key_length";
  spec.head_dim =
      small_integer(file, key_length, file.integer(key_length).value_or(spec.n_embd / spec.n_head), 1 << 12);
  if (file.integer("llama.attention.value_length").value_or(spec.head_dim) != spec.head_dim) {
    throw LoadError(fmt::format("{}: keys and values of different size are not built yet", file.path()));
  }
  if (spec.n_head % spec.n_kv_head != 0 || spec.head_dim % 2 != 0) {
    throw LoadError(fmt::format("{}: {} heads of {} over {} key heads make no sense", file.path(), spec.n_head,
                                spec.head_dim, spec.n_kv_head));
  }
  spec.norm_eps = static_cast<float>(file.require_real("llama.attention.layer_norm_rms_epsilon"));
  const double scale = file.real("llama.attention.scale").value_or(0.0);
  spec.attention_scale = scale == 0.0 ? 1.0F / std::sqrt(static_cast<float>(spec.head_dim)) : static_cast<float>(scale);
  return spec;
}

}  // namespace

ModelSpec read_llama(const GgufFile& file) {
  ModelSpec spec = read_sizes(file);
  const TensorTable tensors(file);
  const int embedding = file.find("token_embd.weight");
  if (embedding < 0) throw LoadError(fmt::format("{} lacks the tensor token_embd.weight", file.path()));
  const auto& shape = file.tensors()[static_cast<std::size_t>(embedding)].shape;
  spec.n_vocab = static_cast<int>(shape.back());
  spec.embedding = tensors.require("token_embd.weight", {spec.n_embd, spec.n_vocab});
  spec.output_norm = tensors.require("output_norm.weight", {spec.n_embd});
  spec.output = tensors.optional("output.weight", {spec.n_embd, spec.n_vocab});
  if (spec.output == kNoTensor) spec.output = spec.embedding;
  spec.rope = read_rope(file, spec, tensors);
  const int n_layers = require_small(file, "llama.block_count", 1 << 12);
  const int n_ff = require_small(file, "llama.feed_forward_length", 1 << 22);
  for (int i = 0; i < n_layers; ++i) spec.layers.push_back(read_layer(spec, n_ff, tensors, i));
  return spec;
}

}  // namespace coppice::model
