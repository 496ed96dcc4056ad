// Model files: from the first byte to the spec of a decoder, whole or in parts.
//
// An input is a GGUF file; where the letters GGUF come again, the next part of a split model begins. Whatever it holds, the
// end is a model that an executor can trust, or one sentence. The corpus began with tiny random models of several families
// (test::write_tiny_model, all sizes as small as they may be).
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
  expect(t.part >= 0 && t.part < file.parts(), "a tensor in a part that is not there");
  const std::size_t size = file.bytes(t.part).size();
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
    matrix(spec_.output.weight, spec_.n_embd, spec_.n_vocab);
    vector(spec_.output_norm, spec_.n_embd);
    expect(std::isfinite(spec_.attention_scale) && std::isfinite(spec_.embedding_scale), "a scale that is no number");
    expect(!spec_.layers.empty() && !spec_.ropes.empty(), "a model without layers");
    for (const model::RopeSpec& rope : spec_.ropes) {
      expect(rope.dims > 0 && rope.dims % 2 == 0, "a rotation of no pairs");
      expect(rope.base > 0 && std::isfinite(rope.freq_scale), "a rotation without frequencies");
      vector(rope.freq_factors, rope.dims / 2);
    }
    for (const model::LayerSpec& layer : spec_.layers) check(layer);
    for (const TensorId id : spec_.matrices()) matrix(id);
  }

 private:
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
  /// Negative ids stand for what a model lacks.
  void vector(TensorId id, std::int64_t n) const {
    expect(id < 0 || (tensor(id).shape == std::vector{n} && tensor(id).type == 0), "a vector of another shape or type");
  }
  void linears(const auto& part) const {
    for (const model::LinearSpec* l : part.linears()) {
      if (l->weight >= 0) vector(l->bias, matrix(l->weight).shape[1]);
    }
  }
  void check(const model::LayerSpec& layer) const {
    const AttentionSpec& a = layer.mixer;
    expect(a.window >= 0, "a window of less than nothing");
    expect(a.rope == AttentionSpec::kNoRope || (a.rope >= 0 && a.rope < std::ssize(spec_.ropes)),
           "an unknown rotation");
    linears(a), linears(layer.feed_forward);
    expect(a.k.weight < 0 || a.v.weight < 0 || matrix(a.k.weight).shape == matrix(a.v.weight).shape,
           "keys and values of different size");
    matrix(a.o.weight, matrix(a.q.weight).shape[1], spec_.n_embd);
    const std::int64_t n_ff = matrix(layer.feed_forward.up.weight).shape[1];
    matrix(layer.feed_forward.gate.weight, spec_.n_embd, n_ff),
        matrix(layer.feed_forward.down.weight, n_ff, spec_.n_embd);
    for (const auto& norms : {layer.mixer_norms, layer.feed_forward_norms}) {
      vector(norms.before, spec_.n_embd), vector(norms.behind, spec_.n_embd);
    }
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
