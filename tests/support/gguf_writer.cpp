#include "support/gguf_writer.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "support/normal.h"

namespace coppice::test {

namespace {

using Gguf = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
using Context = std::unique_ptr<ggml_context, decltype(&ggml_free)>;

struct ScratchFolder {
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("coppice-test-{}", static_cast<int>(::getpid()));
  ScratchFolder() { std::filesystem::create_directories(path); }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

std::filesystem::path scratch_folder() {
  static const ScratchFolder folder;
  return folder.path;
}

std::string model_path(const std::string& variable) {
  const char* path = std::getenv(variable.c_str());
  if (!path || !*path || !std::filesystem::exists(path)) {
    throw std::runtime_error("this test needs the model file: run `make deps` first (" + variable + " names the file)");
  }
  return path;
}

void dequantize_gguf(const std::filesystem::path& from, const std::filesystem::path& to) {
  ggml_context* raw = nullptr;
  const Gguf in(gguf_init_from_file(from.c_str(), {.no_alloc = false, .ctx = &raw}), gguf_free);
  if (!in) throw std::runtime_error("cannot read " + from.string());
  const Context data(raw, ggml_free);
  const Gguf out(gguf_init_empty(), gguf_free);
  gguf_set_kv(out.get(), in.get());
  const std::int64_t n = gguf_get_n_tensors(in.get());
  const Context shapes(ggml_init({.mem_size = static_cast<std::size_t>(n + 1) * ggml_tensor_overhead(),
                                  .mem_buffer = nullptr,
                                  .no_alloc = true}),
                       ggml_free);
  std::vector<ggml_tensor*> sources;
  for (ggml_tensor* t = ggml_get_first_tensor(data.get()); t; t = ggml_get_next_tensor(data.get(), t)) {
    if (gguf_find_tensor(in.get(), ggml_get_name(t)) < 0) continue;  // the blob that holds all data
    ggml_tensor* copy = ggml_new_tensor(shapes.get(), GGML_TYPE_F32, ggml_n_dims(t), t->ne);
    ggml_set_name(copy, ggml_get_name(t));
    gguf_add_tensor(out.get(), copy);
    sources.push_back(t);
  }
  if (!gguf_write_to_file(out.get(), to.c_str(), /*only_meta=*/true)) {
    throw std::runtime_error("cannot write " + to.string());
  }
  std::ofstream file(to, std::ios::binary | std::ios::app);
  std::vector<float> values;
  for (const ggml_tensor* t : sources) {
    const std::int64_t count = ggml_nelements(t);
    values.resize(static_cast<std::size_t>((count + 7) / 8 * 8), 0.0F);  // whole 32-byte units, the file's alignment
    if (t->type == GGML_TYPE_F32) {
      std::copy_n(static_cast<const float*>(t->data), count, values.data());
    } else {
      ggml_get_type_traits(t->type)->to_float(t->data, values.data(), count);
    }
    file.write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + to.string());
}

std::string f32_model_path(const std::string& variable) {
  const std::filesystem::path path = scratch_folder() / (variable + ".gguf");
  if (!std::filesystem::exists(path)) dequantize_gguf(model_path(variable), path);
  return path.string();
}

namespace {

class TinyWriter {
 public:
  explicit TinyWriter(const TinyModel& m)
      : m_(m),
        random_(m.seed),
        gguf_(gguf_init_empty(), gguf_free),
        context_(ggml_init({.mem_size = std::size_t{64} << 20, .mem_buffer = nullptr, .no_alloc = false}), ggml_free) {}

  void write(const std::filesystem::path& to) {
    metadata();
    matrix("token_embd", m_.n_embd, m_.n_vocab, 1.0F, false);
    norm(m_.output_norm, m_.n_embd);
    if (!m_.tied) matrix("output", m_.n_embd, m_.n_vocab, 0.2F, m_.output_bias);
    if (m_.rope_factors) vector("rope_freqs.weight", rope_dims() / 2, m_.rope_factor, 0.4F);
    if (m_.long_and_short) {
      vector("rope_factors_long.weight", rope_dims() / 2, 3.0F, 0.4F);
      vector("rope_factors_short.weight", rope_dims() / 2, 1.2F, 0.2F);
    }
    if (m_.token_inputs > 0) {
      matrix("per_layer_token_embd", m_.token_inputs * m_.n_layer, m_.n_vocab, 1.0F, false);
      matrix("per_layer_model_proj", m_.n_embd, m_.token_inputs * m_.n_layer, 0.3F, false);
      norm("per_layer_proj_norm", m_.token_inputs);
    }
    for (int i = 0; i < m_.n_layer; ++i) layer(i, fmt::format("blk.{}.", i));
    if (!gguf_write_to_file(gguf_.get(), to.c_str(), false)) throw std::runtime_error("cannot write " + to.string());
  }

 private:
  int rope_dims() const { return m_.rope_dims > 0 ? m_.rope_dims : m_.head_dim; }
  bool slides(int layer) const { return !m_.slides.empty() && m_.slides[static_cast<std::size_t>(layer)]; }
  bool owns_kv(int layer) const { return layer < m_.n_layer - m_.shared_kv; }
  int head_dim(int layer) const { return slides(layer) && m_.sliding_head_dim > 0 ? m_.sliding_head_dim : m_.head_dim; }
  bool attends(int layer) const {
    return m_.recurrent.layers.empty() || !m_.recurrent.layers[static_cast<std::size_t>(layer)];
  }
  int kv_heads(int layer) const {
    const bool zero = m_.recurrent.mixer == TinyMixer::kShortConv || m_.recurrent.mixer == TinyMixer::kMamba2;
    if (zero && !attends(layer)) return 0;
    return slides(layer) && m_.sliding_kv_heads > 0 ? m_.sliding_kv_heads : m_.n_kv_head;
  }
  int n_ff(int layer) const { return owns_kv(layer) ? m_.n_ff : 2 * m_.n_ff; }
  void layer(int i, const std::string& p) {
    if (m_.norms_before) norm(p + "attn_norm", m_.n_embd), norm(p + m_.feed_forward_norm, m_.n_embd);
    if (m_.norms_behind) norm(p + "post_attention_norm", m_.n_embd), norm(p + "post_ffw_norm", m_.n_embd);
    attends(i) ? attention(i, p) : recurrent(p);
    has_experts(i) ? experts(i, p) : feed_forward(p, "", n_ff(i));
    if (m_.token_inputs > 0) {
      matrix(p + "inp_gate", m_.n_embd, m_.token_inputs, 0.3F, false);
      matrix(p + "proj", m_.token_inputs, m_.n_embd, 0.3F, false);
      norm(p + "post_norm", m_.n_embd);
    }
    if (m_.layer_scales) vector(p + "layer_output_scale.weight", 1, 1.0F, 0.3F);
  }
  void feed_forward(const std::string& p, const std::string& suffix, int n_ff) {
    if (!m_.fused_gate) matrix(p + "ffn_gate" + suffix, m_.n_embd, n_ff, 0.2F, m_.biases);
    matrix(p + "ffn_up" + suffix, m_.n_embd, m_.fused_gate ? 2 * n_ff : n_ff, 0.2F, m_.biases);
    matrix(p + "ffn_down" + suffix, n_ff, m_.n_embd, 0.2F, m_.biases);
  }
  bool has_experts(int layer) const {
    const TinyExperts& e = m_.experts;
    return e.n > 0 && layer >= e.first_layer && (layer + 1) % e.every == 0;
  }
  void experts(int layer, const std::string& p) {
    const TinyExperts& e = m_.experts;
    router_turn_ = layer;
    add(p + "ffn_gate_inp.weight", GGML_TYPE_F32, m_.n_embd, e.n, 0.0F, 0.02F);
    if (e.biases) vector(p + "ffn_gate_inp.bias", e.n, 0.0F, 0.1F);
    if (e.selection_bias) vector(p + "exp_probs_b.bias", e.n, 0.0F, 0.02F);
    const auto stack = [&](const std::string& name, int n_in, int n_out) {
      matrix(p + name, n_in, n_out, 0.25F, false, e.n);
      if (e.biases) add(p + name + ".bias", GGML_TYPE_F32, n_out, e.n, 0.0F, 0.2F);
    };
    if (e.own_norms) {
      for (const char* name : {"pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"}) norm(p + name, m_.n_embd);
      vector(p + "ffn_gate_inp.scale", m_.n_embd, 1.0F, m_.norm_spread);
      vector(p + "ffn_down_exps.scale", e.n, 1.0F, 0.3F);
      stack("ffn_gate_up_exps", m_.n_embd, 2 * e.n_ff);
    } else {
      stack("ffn_gate_exps", m_.n_embd, e.n_ff);
      stack("ffn_up_exps", m_.n_embd, e.n_ff);
    }
    stack("ffn_down_exps", e.n_ff, m_.n_embd);
    if (e.shared_ff > 0) feed_forward(p, e.own_norms ? "" : "_shexp", e.shared_ff);
    if (e.shared_gate) vector(p + "ffn_gate_inp_shexp.weight", m_.n_embd, 0.0F, 0.2F);
  }
  void attention(int i, const std::string& p) {
    const int q = m_.n_head * head_dim(i), kv = kv_heads(i) * head_dim(i);
    if (m_.qk_norm != TinyQkNorm::kNone) {
      const bool heads = m_.qk_norm == TinyQkNorm::kHeads;
      norm(p + "attn_q_norm", heads ? head_dim(i) : q);
      if (owns_kv(i)) norm(p + "attn_k_norm", heads ? head_dim(i) : kv);
    }
    const bool qkv_biases = m_.biases || m_.qkv_biases;
    if (m_.fused_qkv) {
      matrix(p + "attn_qkv", m_.n_embd, q + 2 * kv, 0.3F, qkv_biases);
    } else {
      matrix(p + "attn_q", m_.n_embd, m_.gate_in_q ? 2 * q : q, m_.qk_spread, qkv_biases);
      if (owns_kv(i)) matrix(p + "attn_k", m_.n_embd, kv, m_.qk_spread, qkv_biases);
      const bool has_v = owns_kv(i) && (slides(i) || !m_.values_are_keys);
      if (has_v) matrix(p + "attn_v", m_.n_embd, kv, 0.3F, qkv_biases);
    }
    matrix(p + "attn_output", q, m_.n_embd, 0.3F, m_.biases);
    if (m_.gate != TinyGate::kNone) {
      matrix(p + "attn_gate", m_.n_embd, m_.gate == TinyGate::kHeads ? m_.n_head : q, 0.3F, false);
    }
    if (m_.sinks) vector(p + "attn_sinks.weight", m_.n_head, 0.5F, 1.0F);
  }
  void convolution(const std::string& name, int n_channels) {
    add(name + ".weight", GGML_TYPE_F32, m_.recurrent.taps, n_channels, 0.0F, 0.5F);
  }
  void recurrent(const std::string& p) {
    const TinyRecurrent& r = m_.recurrent;
    if (r.mixer == TinyMixer::kShortConv) {
      matrix(p + "shortconv.in_proj", m_.n_embd, 3 * m_.n_embd, 0.3F, false);
      convolution(p + "shortconv.conv", m_.n_embd);
      matrix(p + "shortconv.out_proj", m_.n_embd, m_.n_embd, 0.3F, false);
      return;
    }
    const int values = r.n_heads * r.value_dim, channels = 2 * r.n_key_heads * r.key_dim + values;
    convolution(p + "ssm_conv1d", channels);
    vector(p + "ssm_dt.bias", r.n_heads, 0.0F, 1.0F);
    matrix(p + "ssm_out", values, m_.n_embd, 0.3F, false);
    if (r.mixer == TinyMixer::kMamba2) {
      matrix(p + "ssm_in", m_.n_embd, values + channels + r.n_heads, 0.2F, false);
      vector(p + "ssm_conv1d.bias", channels, 0.0F, 0.3F);
      add(p + "ssm_a", GGML_TYPE_F32, 1, r.n_heads, -0.5F, 0.1F);
      add(p + "ssm_d", GGML_TYPE_F32, 1, r.n_heads, 1.0F, 0.3F);
      add(p + "ssm_norm.weight", GGML_TYPE_F32, values / r.n_key_heads, r.n_key_heads, 1.0F, m_.norm_spread);
      return;
    }
    vector(p + "ssm_a", r.n_heads, -0.5F, 0.1F);
    vector(p + "ssm_norm.weight", r.value_dim, 1.0F, m_.norm_spread);
    matrix(p + "attn_qkv", m_.n_embd, channels, 0.3F, false);
    matrix(p + "attn_gate", m_.n_embd, values, 0.3F, false);
    if (r.mixer == TinyMixer::kDeltaOneGates) {
      matrix(p + "ssm_ba", m_.n_embd, 2 * r.n_heads, 0.3F, false);
    } else {
      matrix(p + "ssm_alpha", m_.n_embd, r.n_heads, 0.3F, false);
      matrix(p + "ssm_beta", m_.n_embd, r.n_heads, 0.3F, false);
    }
  }
  void norm(const std::string& name, int n) { vector(name + ".weight", n, 1.0F, m_.norm_spread); }
  void setting(const std::string& name, const TinySetting& value) {
    const std::string key = m_.architecture + "." + name;
    gguf_context* g = gguf_.get();
    if (const auto* truth = std::get_if<bool>(&value)) gguf_set_val_bool(g, key.c_str(), *truth);
    if (const auto* whole = std::get_if<int>(&value)) {
      *whole < 0 ? gguf_set_val_i32(g, key.c_str(), *whole) : number(name, *whole);
    }
    if (const auto* real = std::get_if<float>(&value)) gguf_set_val_f32(g, key.c_str(), *real);
    if (const auto* text = std::get_if<std::string>(&value)) gguf_set_val_str(g, key.c_str(), text->c_str());
    if (const auto* list = std::get_if<std::vector<bool>>(&value)) {
      const std::vector<std::uint8_t> bytes(list->begin(), list->end());
      gguf_set_arr_data(g, key.c_str(), GGUF_TYPE_BOOL, bytes.data(), bytes.size());
    }
    if (const auto* list = std::get_if<std::vector<int>>(&value)) {
      gguf_set_arr_data(g, key.c_str(), GGUF_TYPE_INT32, list->data(), list->size());
    }
  }
  void number(const std::string& key, int value) {
    gguf_set_val_u32(gguf_.get(), (m_.architecture + "." + key).c_str(), static_cast<std::uint32_t>(value));
  }
  /// One number, or a list where layers differ.
  template <class Of>
  void numbers(const std::string& key, Of of) {
    std::vector<std::int32_t> all;
    for (int i = 0; i < m_.n_layer; ++i) all.push_back(of(i));
    if (std::ranges::count(all, all[0]) == std::ssize(all)) return number(key, all[0]);
    gguf_set_arr_data(gguf_.get(), (m_.architecture + "." + key).c_str(), GGUF_TYPE_INT32, all.data(), all.size());
  }
  void metadata() {
    gguf_set_val_str(gguf_.get(), "general.architecture", m_.architecture.c_str());
    gguf_set_val_str(gguf_.get(), "general.name", "tiny");
    gguf_set_val_str(gguf_.get(), "tokenizer.ggml.model", "no_vocab");
    number("vocab_size", m_.n_vocab);
    number("block_count", m_.n_layer);
    number("context_length", m_.context);
    number("embedding_length", m_.n_embd);
    number("attention.head_count", m_.n_head);
    numbers("feed_forward_length", [this](int i) { return n_ff(i); });
    numbers("attention.head_count_kv", [this](int i) { return kv_heads(i); });
    number("attention.key_length", m_.head_dim);
    number("attention.value_length", m_.head_dim);
    number("rope.dimension_count", rope_dims());
    if (m_.experts.n > 0) {
      number("expert_count", m_.experts.n);
      number("expert_used_count", m_.experts.n_used);
      number("expert_feed_forward_length", m_.experts.n_ff);
    }
    if (m_.experts.shared_ff > 0) number("expert_shared_feed_forward_length", m_.experts.shared_ff);
    if (!m_.slides.empty()) setting("attention.sliding_window_pattern", m_.slides);
    if (m_.sliding_head_dim > 0) {
      number("attention.key_length_swa", m_.sliding_head_dim);
      number("attention.value_length_swa", m_.sliding_head_dim);
      number("rope.dimension_count_swa", m_.sliding_head_dim);
    }
    recurrent_metadata();
    if (m_.shared_kv > 0) number("attention.shared_kv_layers", m_.shared_kv);
    if (m_.token_inputs > 0) number("embedding_length_per_layer_input", m_.token_inputs);
    gguf_set_val_f32(gguf_.get(), (m_.architecture + ".attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
    for (const auto& [name, value] : m_.settings) setting(name, value);
  }
  void recurrent_metadata() {
    const TinyRecurrent& r = m_.recurrent;
    if (r.mixer == TinyMixer::kAttention) return;
    if (r.mixer == TinyMixer::kShortConv) return number("shortconv.l_cache", r.taps);
    number("ssm.conv_kernel", r.taps);
    number("ssm.inner_size", r.n_heads * r.value_dim);
    number("ssm.state_size", r.key_dim);
    number("ssm.time_step_rank", r.n_heads);
    number("ssm.group_count", r.n_key_heads);
    if (r.mixer != TinyMixer::kMamba2 && r.listed) setting("attention.recurrent_layers", r.layers);
  }
  /// n matrices.
  void add(const std::string& name, int type, int n_in, int n_out, float mean, float spread, int n = 1) {
    if (name == m_.leave_out) return;
    if (name == m_.wrong_shape) (n_out == 1 ? n_in : n_out) -= 1;
    test::Normal normal(mean, spread);
    const std::size_t n_matrix = static_cast<std::size_t>(n_in) * static_cast<std::size_t>(n_out);
    std::vector<float> values(n_matrix * static_cast<std::size_t>(n));
    for (float& x : values) x = normal(random_);
    if (m_.experts.n > 0) {
      for (std::size_t i = 0; i < values.size(); i += n_matrix)
        decide(name, std::span(values).subspan(i, n_matrix), n_in);
    }
    const auto t = static_cast<ggml_type>(type);
    const std::array<std::int64_t, 3> shape = {n_in, n_out, n};
    ggml_tensor* tensor = ggml_new_tensor(context_.get(), t, n > 1 ? 3 : n_out > 1 ? 2 : 1, shape.data());
    ggml_set_name(tensor, name.c_str());
    ggml_quantize_chunk(t, values.data(), tensor->data, 0, std::int64_t{n_out} * n, n_in, nullptr);
    gguf_add_tensor(gguf_.get(), tensor);
  }
  /// What makes the choice of experts a clear one (TinyExperts).
  void decide(const std::string& name, std::span<float> matrix, int n_in) {
    if (name.ends_with("exp_probs_b.bias")) matrix[1] += 1.0F;  // always chosen
    if (!name.ends_with(".weight") && !name.ends_with("gate_inp.scale")) return;
    const auto n = static_cast<std::size_t>(m_.experts.n), row = static_cast<std::size_t>(n_in);
    if (name == "token_embd.weight") {
      std::vector<float> levels(n, 0.0F);
      const auto n_used = static_cast<std::size_t>(m_.experts.n_used);
      for (std::size_t i = 0; i < n_used; ++i)
        levels[i] = 9.0F - 5.0F * static_cast<float>(i) / static_cast<float>(n_used);
      for (std::size_t i = 0; i < matrix.size(); i += row) {
        std::ranges::shuffle(levels, random_);
        for (std::size_t e = 0; e < n; ++e) matrix[i + e] = levels[e] + 0.2F * matrix[i + e];
      }
    } else if (name.find("attn_output") != name.npos || name.find("ffn_down") != name.npos) {
      for (float& x : matrix.first(n * row)) x *= 0.05F;
    } else if (name.find("blk.") == 0 && matrix.size() == row) {  // a norm
      for (float& x : matrix.first(std::min(n, row))) x = 1.0F + 0.3F * (x - 1.0F);
    } else if (name.find("ffn_gate_inp.weight") != name.npos) {
      for (std::size_t e = 0; e < n; ++e) matrix[e * row + (e + static_cast<std::size_t>(router_turn_)) % n] += 1.0F;
    }
  }
  void vector(const std::string& name, int n, float mean, float spread) {
    add(name, GGML_TYPE_F32, n, 1, mean, spread);
  }
  void matrix(const std::string& name, int n_in, int n_out, float spread, bool bias, int n = 1) {
    const auto other = m_.other_types.find(name.substr(name.rfind('.') + 1));
    const int type = other != m_.other_types.end() ? other->second : m_.matrix_type;
    // Wide layers must not amplify more than narrow ones: roundings would grow with each of them.
    if (n_in > 128) spread *= std::sqrt(64.0F / static_cast<float>(n_in));
    add(name + ".weight", type, n_in, n_out, 0.0F, spread, n);
    if (bias) vector(name + ".bias", n_out, 0.0F, 0.2F);
  }

  const TinyModel& m_;
  int router_turn_ = 0;
  std::mt19937 random_;
  Gguf gguf_;
  Context context_;
};

}  // namespace

std::filesystem::path write_tiny_model(const TinyModel& model, const std::filesystem::path& to) {
  TinyWriter(model).write(to);
  return to;
}

}  // namespace coppice::test
