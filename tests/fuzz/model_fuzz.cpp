// Model files: from the first byte to the spec of a decoder, whole or in parts.
//
// An input is a GGUF file; where the letters GGUF come again, the next part of a split model begins. Whatever it holds,
// the end is a model that an executor can trust, or one sentence. The corpus began with tiny random models of several
// families (test::write_tiny_model, all sizes as small as they may be).
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "fuzz/fuzz.h"
#include "model/model.h"

namespace coppice::testing {
namespace {

namespace fs = std::filesystem;
using model::AttentionSpec;
using model::GgufFile;
using model::TensorId;
using model::TensorInfo;

void expect(bool holds, const char* what) {
  if (!holds) finding(what);
}

class Folder {
 public:
  Folder()
      : path_((fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path()) /
              fmt::format("coppice-fuzz-model-{}", ::getpid())) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  /// Returns the first part's path. Files of earlier inputs have other names, or are written again.
  std::string write(std::string_view input) const {
    constexpr std::size_t kMostParts = 4;
    std::vector<std::string_view> parts;
    while (parts.size() + 1 < kMostParts) {
      const std::size_t next = input.find("GGUF", 1);
      if (next == std::string_view::npos) break;
      parts.push_back(input.substr(0, next));
      input.remove_prefix(next);
    }
    parts.push_back(input);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::ofstream(part(i, parts.size()), std::ios::binary) << parts[i];
    }
    return part(0, parts.size());
  }

 private:
  std::string part(std::size_t i, std::size_t n) const {
    return path_ / fmt::format("m-{:05}-of-{:05}.gguf", i + 1, n);
  }
  fs::path path_;
};

void check_tensor(const GgufFile& file, const TensorInfo& t) {
  expect(t.file >= 0 && t.file < file.parts(), "a tensor in a part that is not there");
  const std::size_t size = file.bytes(t.file).size();
  expect(t.offset <= size && t.bytes <= size - t.offset, "a tensor beyond its file");
  expect(!t.shape.empty() && t.shape.size() <= 4, "a tensor of no known number of dimensions");
  for (const std::int64_t n : t.shape) expect(n >= 1, "a tensor without values");
}

class SpecCheck {
 public:
  explicit SpecCheck(const model::Model& m) : file_(*m.file), spec_(m.spec) {}

  void run() const {
    expect(spec_.n_embd > 0 && spec_.n_vocab > 0 && spec_.context_length > 0, "a model without a size");
    matrix(spec_.embedding, spec_.n_embd, spec_.n_vocab);
    linear(spec_.output, spec_.n_embd, spec_.n_vocab);
    vector(spec_.output_norm, spec_.n_embd, kRequired);
    vector(spec_.embedding_norm, spec_.n_embd, kOrUnit);
    for (const float x :
         {spec_.norm_eps, spec_.norm_eps_behind, spec_.attention_scale, spec_.attention_softcap, spec_.embedding_scale,
          spec_.residual_scale, spec_.logit_scale, spec_.logit_softcap, spec_.temperature.scale}) {
      expect(std::isfinite(x), "a setting that is no number");
    }
    expect(!spec_.layers.empty() && !spec_.ropes.empty(), "a model without layers");
    for (const model::RopeSpec& rope : spec_.ropes) {
      expect(rope.dims > 0 && rope.dims % 2 == 0, "a rotation of no pairs");
      expect(rope.base > 0 && std::isfinite(rope.freq_scale) && std::isfinite(rope.magnitude),
             "a rotation without frequencies");
      expect(!rope.yarn || rope.yarn->original_context > 0, "a rotation stretched from nothing");
    }
    check_token_inputs();
    for (std::size_t i = 0; i < spec_.layers.size(); ++i) check(spec_.layers[i], i);
    for (const TensorId id : spec_.matrices()) matrix(id);
  }

 private:
  enum Lack : std::uint8_t {
    kRequired,
    kOptional,
    kOrUnit
  };  ///< what may stand for a vector: kNoTensor, kUnitNorm too

  const TensorInfo& tensor(TensorId id) const {
    expect(id >= 0 && static_cast<std::size_t>(id) < file_.tensors().size(), "a tensor that is not there");
    return file_.tensors()[static_cast<std::size_t>(id)];
  }
  const TensorInfo& matrix(TensorId id) const {
    const TensorInfo& t = tensor(id);
    expect(t.shape.size() == 2, "a matrix that is none");
    expect(model::holds_weights(t.type), "a matrix that holds no weights");
    return t;
  }
  void matrix(TensorId id, std::int64_t n_in, std::int64_t n_out) const {
    expect(matrix(id).shape == std::vector{n_in, n_out}, "a matrix of another shape");
  }
  void vector(TensorId id, std::int64_t n, Lack lack) const {
    if (id == model::kNoTensor ? lack != kRequired : id == model::kUnitNorm && lack == kOrUnit) return;
    expect(tensor(id).shape == std::vector{n} && tensor(id).type == 0, "a vector of another shape or type");
  }
  /// A norm of each head, or of all at once.
  void head_norm(TensorId id, std::int64_t head_dim, std::int64_t n) const {
    vector(id, id >= 0 && tensor(id).shape.front() == n ? n : head_dim, kOrUnit);
  }
  void linear(const model::LinearSpec& l, std::int64_t n_in, std::int64_t n_out) const {
    matrix(l.weight, n_in, n_out);
    vector(l.bias, n_out, kOptional);
  }
  static bool lacks(const model::LinearSpec& l) { return l.weight == model::kNoTensor && l.bias == model::kNoTensor; }

  void check_token_inputs() const {
    const model::TokenInputsSpec& t = spec_.token_inputs;
    expect(t.width >= 0, "inputs of less than no width");
    if (t.width == 0) {
      expect(t.embedding == model::kNoTensor && lacks(t.projection) && t.norm == model::kNoTensor,
             "inputs of no width");
      return;
    }
    const std::int64_t all = std::int64_t{t.width} * std::ssize(spec_.layers);
    matrix(t.embedding, all, spec_.n_vocab);
    linear(t.projection, spec_.n_embd, all);
    vector(t.norm, t.width, kRequired);
  }
  void check(const model::LayerSpec& layer, std::size_t index) const {
    const bool recurrent = !std::holds_alternative<std::monostate>(layer.recurrent);
    expect(recurrent != layer.mixer.attends(), "a layer without a mixer, or with two");
    if (layer.mixer.attends()) check(layer.mixer, index);
    if (const auto* mixer = std::get_if<model::ShortConvSpec>(&layer.recurrent)) check(*mixer);
    if (const auto* mixer = std::get_if<model::LinearAttentionSpec>(&layer.recurrent)) check(*mixer);
    const model::GatedSpec& f = layer.feed_forward;
    const std::int64_t n_ff = matrix(f.up.weight).shape[1];
    linear(f.gate, spec_.n_embd, n_ff), linear(f.up, spec_.n_embd, n_ff), linear(f.down, n_ff, spec_.n_embd);
    for (const auto& norms : {layer.mixer_norms, layer.feed_forward_norms}) {
      expect(norms.before != model::kNoTensor || norms.behind != model::kNoTensor, "a part without norms");
      vector(norms.before, spec_.n_embd, kOptional), vector(norms.behind, spec_.n_embd, kOptional);
    }
    const model::TokenInputSpec& t = layer.token_input;
    if (const int width = spec_.token_inputs.width; width > 0) {
      linear(t.down, spec_.n_embd, width), linear(t.up, width, spec_.n_embd);
      vector(t.norm, spec_.n_embd, kRequired);
    } else {
      expect(lacks(t.down) && lacks(t.up) && t.norm == model::kNoTensor, "an input of no width");
    }
    vector(layer.scale, 1, kOptional);
  }
  void check_f32(TensorId id, const std::vector<std::int64_t>& shape) const {
    expect(tensor(id).shape == shape && tensor(id).type == 0, "a table of another shape or type");
  }
  void check(const model::ConvSpec& c, std::int64_t n_channels) const {
    expect(c.n_taps >= 2 && c.n_taps <= 4 && c.n_channels == n_channels, "a convolution that is none");
    check_f32(c.weights, {c.n_taps, n_channels});
    vector(c.bias, n_channels, kOptional);
  }
  void check(const model::ShortConvSpec& s) const {
    check(s.conv, spec_.n_embd);
    linear(s.in, spec_.n_embd, 3 * std::int64_t{spec_.n_embd}), linear(s.out, spec_.n_embd, spec_.n_embd);
  }
  void check(const model::LinearAttentionSpec& s) const {
    expect(s.n_key_heads > 0 && s.n_heads > 0 && s.n_heads % s.n_key_heads == 0, "states without keys");
    expect(s.key_dim > 0 && s.key_dim % 16 == 0 && s.value_dim > 0 && s.value_dim % 16 == 0, "states of odd sizes");
    const std::int64_t values = std::int64_t{s.n_heads} * s.value_dim;
    const std::int64_t channels = values + 2 * std::int64_t{s.n_key_heads} * s.key_dim;
    check(s.conv, channels);
    linear(s.qkv, spec_.n_embd, channels), linear(s.z, spec_.n_embd, values), linear(s.out, values, spec_.n_embd);
    const bool both = lacks(s.alpha);
    linear(both ? s.beta : s.alpha, spec_.n_embd, both ? 2 * s.n_heads : s.n_heads);
    if (!both && !lacks(s.beta)) linear(s.beta, spec_.n_embd, s.n_heads);
    vector(s.dt_bias, s.n_heads, kRequired);
    if (s.rule == model::StateRule::kDelta) {
      expect(!lacks(s.beta), "a delta rule without a gate");
      vector(s.a, s.n_heads, kRequired), vector(s.norm, s.value_dim, kRequired);
    } else {
      check_f32(s.a, {1, s.n_heads}), check_f32(s.skip, {1, s.n_heads});
    }
  }
  void check(const AttentionSpec& a, std::size_t index) const {
    const auto [n_head, n_kv_head, head_dim] = a.heads;
    expect(n_kv_head > 0 && n_head > 0 && n_head % n_kv_head == 0, "queries without keys");
    expect(head_dim > 0 && head_dim % 2 == 0, "heads of no pairs");
    const std::int64_t q = std::int64_t{n_head} * head_dim, kv = std::int64_t{n_kv_head} * head_dim;
    linear(a.q, spec_.n_embd, a.gate_in_q ? 2 * q : q), linear(a.o, q, spec_.n_embd);
    if (!lacks(a.gate)) linear(a.gate, spec_.n_embd, matrix(a.gate.weight).shape[1] == n_head ? n_head : q);
    vector(a.sinks, n_head, kOptional);
    head_norm(a.q_norm, head_dim, q);
    expect(a.window >= 0 && a.window < spec_.context_length, "a window of less than nothing, or of everything");
    expect(!a.chunked || a.window > 0, "chunks of no tokens");
    expect(!a.sharpened || spec_.temperature.length > 0, "queries sharpened by no length");
    expect(a.rope >= AttentionSpec::kNoRope && a.rope < std::ssize(spec_.ropes), "an unknown rotation");
    if (a.rope != AttentionSpec::kNoRope) {
      const model::RopeSpec& rope = spec_.ropes[static_cast<std::size_t>(a.rope)];
      expect(rope.dims <= head_dim, "a rotation of more than a head");
      vector(rope.freq_factors, rope.dims / 2, kOptional);
    }
    a.owns_kv() ? check_own(a, kv) : check_shared(a, index);
  }
  void check_own(const AttentionSpec& a, std::int64_t kv) const {
    linear(a.k, spec_.n_embd, kv);
    if (lacks(a.v)) {
      expect(a.v_norm != model::kNoTensor, "values that are nothing but keys");
    } else {
      linear(a.v, spec_.n_embd, kv);
    }
    head_norm(a.k_norm, a.heads.head_dim, kv), head_norm(a.v_norm, a.heads.head_dim, kv);
    for (const model::LayerSpec& other : spec_.layers) {
      const AttentionSpec& o = other.mixer;
      const bool alike = o.owns_kv() && o.window == a.window && o.chunked == a.chunked;
      expect(!alike || o.heads == a.heads, "layers that see the same with other heads");
    }
  }
  void check_shared(const AttentionSpec& a, std::size_t index) const {
    expect(a.kv_layer >= 0 && static_cast<std::size_t>(a.kv_layer) < index, "keys of no layer before");
    const AttentionSpec& owner = spec_.layers[static_cast<std::size_t>(a.kv_layer)].mixer;
    expect(owner.owns_kv(), "keys of a layer that has none");
    expect(owner.window == a.window && owner.chunked == a.chunked && owner.rope == a.rope && owner.heads == a.heads,
           "keys of another kind of layer");
    expect(lacks(a.k) && lacks(a.v) && a.k_norm == model::kNoTensor && a.v_norm == model::kNoTensor,
           "keys of its own and of another layer");
  }

  const GgufFile& file_;
  const model::ModelSpec& spec_;
};

/// Runs `read` and takes one sentence for an answer.
template <class Read>
void refusable(Read&& read) {
  try {
    read();
  } catch (const model::LoadError& e) {
    const std::string_view said = e.what();
    expect(!said.empty() && said.size() < 5000, "a sentence that nobody can read");
    expect(std::ranges::none_of(said, [](char c) { return c == '\n' || c == '\x1b'; }), "a sentence of several lines");
  }
}

void run(std::string_view input) {
  // Straight from the fuzzer's memory, behind whose end AddressSanitizer watches; behind a mapping's end it does not.
  refusable([&] { model::read_gguf_header(std::as_bytes(std::span(input)), "memory"); });
  static const Folder folder;
  refusable([&] {
    const model::Model m = model::load_model(folder.write(input));
    for (const TensorInfo& t : m.file->tensors()) check_tensor(*m.file, t);
    SpecCheck(m).run();
  });
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  coppice::testing::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
