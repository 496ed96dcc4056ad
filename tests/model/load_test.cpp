// Good files become specs; bad files become one clear sentence, never an abort.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "model/families.h"
#include "model/model.h"
#include "support/family_models.h"
#include "support/gguf_writer.h"

namespace coppice::model {
namespace {

using test::TinyModel;

std::string tiny(const std::string& name, const TinyModel& model) {
  return test::write_tiny_model(model, test::scratch_folder() / (name + ".gguf")).string();
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string write(const std::string& bytes) {
  const std::string path = (test::scratch_folder() / "bad.gguf").string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// The sentence that loading ends with; empty when it loads.
std::string complaint(const std::string& path) {
  try {
    load_model(path);
    return {};
  } catch (const LoadError& e) {
    return e.what();
  }
}

void expect_complaint(const std::string& path, const std::string& part) {
  EXPECT_NE(complaint(path).find(part), std::string::npos) << "said: " << complaint(path);
}

TEST(LoadModel, ReadsWhatTheFileSays) {
  const Model m = load_model(tiny("good", {.biases = true, .rope_factors = true, .tied = false}));
  EXPECT_EQ(m.spec.architecture, "llama");
  EXPECT_EQ(m.spec.name, "tiny");
  EXPECT_EQ(m.spec.n_vocab, 320);
  EXPECT_EQ(m.spec.n_embd, 64);
  EXPECT_EQ(m.spec.n_head, 4);
  EXPECT_EQ(m.spec.n_kv_head, 2);
  EXPECT_EQ(m.spec.head_dim, 16);
  EXPECT_EQ(m.spec.context_length, 512);
  EXPECT_FLOAT_EQ(m.spec.norm_eps, 1e-5F);
  EXPECT_FLOAT_EQ(m.spec.attention_scale, 0.25F);
  EXPECT_EQ(m.spec.ropes.at(0).dims, 16);
  EXPECT_FLOAT_EQ(m.spec.ropes.at(0).base, 10000);
  EXPECT_NE(m.spec.ropes.at(0).freq_factors, kNoTensor);
  EXPECT_NE(m.spec.output.weight, m.spec.embedding);
  ASSERT_EQ(m.spec.layers.size(), 2U);
  EXPECT_NE(m.spec.layers[1].feed_forward.down.bias, kNoTensor);
  EXPECT_EQ(m.file->tensors()[static_cast<std::size_t>(m.spec.layers[1].feed_forward.down.weight)].name,
            "blk.1.ffn_down.weight");
  const ModelSpec tied = load_model(tiny("tied", {})).spec;
  EXPECT_EQ(tied.output.weight, tied.embedding);
}

TinyModel tiny_family(const std::string& name) {
  for (const test::FamilyModel& m : test::family_models()) {
    if (m.name == name) return m.model;
  }
  throw std::runtime_error("no family model is named " + name);
}

TEST(LoadModel, LayersThatSlideFollowTheFilesPattern) {
  const ModelSpec gemma = load_model(tiny("gemma3", tiny_family("gemma3"))).spec;
  ASSERT_EQ(gemma.layers.size(), 7U);
  ASSERT_EQ(gemma.ropes.size(), 2U);
  for (std::size_t i = 0; i < gemma.layers.size(); ++i) {
    EXPECT_EQ(gemma.layers[i].mixer.window, i == 5 ? 0 : 40) << i;
    EXPECT_EQ(gemma.layers[i].mixer.rope, i == 5 ? 0 : 1) << i;
  }
  EXPECT_FLOAT_EQ(gemma.ropes[0].base, 1e6F);
  EXPECT_FLOAT_EQ(gemma.ropes[0].freq_scale, 0.125F);
  EXPECT_FLOAT_EQ(gemma.ropes[1].base, 1e4F);
  EXPECT_FLOAT_EQ(gemma.ropes[1].freq_scale, 1);
  const ModelSpec olmo = load_model(tiny("olmo3", tiny_family("olmo3"))).spec;
  std::vector<int> windows;
  for (const LayerSpec& layer : olmo.layers) windows.push_back(layer.mixer.window);
  EXPECT_EQ(windows, (std::vector{9, 9, 0, 9, 0}));
  TinyModel wide = tiny_family("gemma3");
  wide.settings["attention.sliding_window"] = 512;  // the model's whole context
  EXPECT_EQ(load_model(tiny("wide", wide)).spec.layers[0].mixer.window, 0);
}

TEST(LoadModel, MatricesInOnePieceAreSplit) {
  const TinyModel phi = tiny_family("phi3");
  const Model m = load_model(tiny("phi3", phi));
  const AttentionSpec& a = m.spec.layers[1].mixer;
  const GatedSpec& f = m.spec.layers[1].feed_forward;
  const auto tensor = [&](const LinearSpec& l) { return m.file->tensors()[static_cast<std::size_t>(l.weight)]; };
  const auto follows = [&](const LinearSpec& l, const LinearSpec& before) {
    return tensor(l).offset == tensor(before).offset + tensor(before).bytes;
  };
  EXPECT_EQ(tensor(a.q).shape, (std::vector<std::int64_t>{64, 64}));
  EXPECT_EQ(tensor(a.k).shape, (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(tensor(a.v).shape, (std::vector<std::int64_t>{64, 32}));
  EXPECT_TRUE(follows(a.k, a.q) && follows(a.v, a.k));
  EXPECT_EQ(tensor(f.gate).shape, tensor(f.up).shape);
  EXPECT_TRUE(follows(f.up, f.gate));
}

TEST(LoadModel, LayersThatGuessFurtherTokensAreLeftOut) {
  TinyModel model = tiny_family("glm4");
  model.n_layer = 4;
  model.settings["nextn_predict_layers"] = 1;
  EXPECT_EQ(load_model(tiny("nextn", model)).spec.layers.size(), 3U);
}

TEST(LoadModel, SettingsThatNobodyCanFollowAreErrors) {
  const auto with = [](TinyModel model, const std::string& key, const test::TinySetting& value) {
    model.settings[key] = value;
    return tiny("broken", model);
  };
  expect_complaint(with({}, "rope.scaling.type", "dynamic"), "positions are scaled by 'dynamic'");
  expect_complaint(with({}, "rope.freq_base", 0.0F), "make no sense");
  expect_complaint(with(tiny_family("llama_yarn"), "rope.freq_base", 1.0F), "YaRN");
  expect_complaint(with({}, "expert_count", 8), "mixture of experts");
  expect_complaint(with(tiny_family("gemma3"), "attention.sliding_window", -1), "out of range");
  expect_complaint(with(tiny_family("gemma3"), "attention.sliding_window_pattern", std::vector{true, false}),
                   "2 values where 7 are needed");
  expect_complaint(with(tiny_family("granite"), "logit_scale", std::numeric_limits<float>::infinity()), "out of range");
  expect_complaint(with({}, "nextn_predict_layers", 2), "no layers are left");
  expect_complaint(with(tiny_family("glm4"), "rope.dimension_sections", std::vector{true, true, true, false}),
                   "more than one dimension");
  TinyModel phi = tiny_family("phi3");
  phi.wrong_shape = "blk.1.attn_qkv.weight";
  expect_complaint(tiny("broken", phi), "has the shape [64, 127] where [64, 128] is needed");
}

TEST(LoadModel, DigestTellsModelsApart) {
  const std::string path = tiny("digest", {});
  const std::string digest = load_model(path).digest;
  EXPECT_EQ(digest.size(), 64U);
  EXPECT_EQ(load_model(path).digest, digest);
  EXPECT_NE(load_model(tiny("other_weights", {.seed = 2})).digest, digest);
  std::string bytes = read(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // the last tensor's last byte
  EXPECT_NE(load_model(write(bytes)).digest, digest);
}

TEST(LoadModel, NoSuchFileAndEmptyFile) {
  expect_complaint((test::scratch_folder() / "nowhere.gguf").string(), "cannot open");
  expect_complaint(write(""), "not a file with anything in it");
  expect_complaint(test::scratch_folder().string(), "not a file");
}

TEST(LoadModel, WrongMagicAndVersion) {
  std::string bytes = read(tiny("magic", {}));
  std::string bad = bytes;
  bad[0] = 'X';
  expect_complaint(write(bad), "is not a GGUF file");
  bad = bytes;
  bad[4] = 9;
  expect_complaint(write(bad), "GGUF version 9");
  expect_complaint(write("GG"), "is not a GGUF file");
}

TEST(LoadModel, TruncatedAnywhere) {
  const std::string bytes = read(tiny("whole", {}));
  for (std::size_t n = 1; n < bytes.size(); n += n < 4096 ? 7 : 4099) {
    EXPECT_FALSE(complaint(write(bytes.substr(0, n))).empty()) << "loaded from its first " << n << " bytes";
  }
  expect_complaint(write(bytes.substr(0, bytes.size() - 1)), "truncated");
}

TEST(LoadModel, AnyByteOfTheHeaderMayBeWrong) {
  const std::string path = tiny("header", {});
  const std::string bytes = read(path);
  const std::size_t header = load_model(path).file->metadata_bytes().size();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto poke = [&](std::size_t i, int flip) {
    file.seekp(static_cast<std::streamoff>(i));
    file.put(static_cast<char>(bytes[i] ^ flip));
    file.flush();
  };
  for (std::size_t i = 4; i < header; ++i) {
    for (const int flip : {0x01, 0x80, 0xFF}) {
      poke(i, flip);
      complaint(path);  // a sentence or a model, never an abort
    }
    poke(i, 0);
  }
  EXPECT_EQ(complaint(path), "");
}

TEST(LoadModel, MissingAndMisshapenTensors) {
  for (const char* name : {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight",
                           "blk.1.attn_norm.weight"}) {
    expect_complaint(tiny("broken", {.leave_out = name}), std::string("lacks the tensor ") + name);
  }
  for (const char* name : {"blk.0.attn_k.weight", "blk.1.ffn_up.weight"}) {
    expect_complaint(tiny("broken", {.wrong_shape = name}), std::string("tensor ") + name + " has the shape");
  }
  expect_complaint(tiny("broken", {.biases = true, .wrong_shape = "blk.0.attn_q.bias"}), "has the shape [63]");
}

TEST(LoadModel, UnknownArchitectureListsTheKnownOnes) {
  const std::string path = tiny("mamba", {.architecture = "mamba"});
  expect_complaint(path, "'mamba'");
  for (const auto known : known_architectures()) expect_complaint(path, std::string(known));
}

}  // namespace
}  // namespace coppice::model
