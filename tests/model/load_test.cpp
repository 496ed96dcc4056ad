// Good files become specs; bad files become one clear sentence, never an abort.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>

#include "model/complaint.h"
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

void expect_complaint(const std::string& path, const std::string& part) {
  EXPECT_NE(complaint(path).find(part), std::string::npos) << "said: " << complaint(path);
}

TEST(LoadModel, ReadsWhatTheFileSays) {
  const Model m = load_model(tiny("good", {.biases = true, .rope_factors = true, .tied = false}));
  EXPECT_EQ(m.spec.architecture, "llama");
  EXPECT_EQ(m.spec.name, "tiny");
  EXPECT_EQ(m.spec.n_vocab, 320);
  EXPECT_EQ(m.spec.n_embd, 64);
  EXPECT_EQ(m.spec.layers[0].mixer.heads, (HeadsSpec{4, 2, 16}));
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

TEST(LoadModel, LayersMayReadTheKeysAndValuesOfOthers) {
  const ModelSpec own = load_model(tiny("gemma4", tiny_family("gemma4"))).spec;
  EXPECT_EQ(own.layers[0].mixer.heads, (HeadsSpec{4, 2, 16}));
  EXPECT_EQ(own.layers[2].mixer.heads, (HeadsSpec{4, 1, 32}));
  EXPECT_EQ(own.layers[2].mixer.v.weight, kNoTensor);
  const ModelSpec shared = load_model(tiny("shared", tiny_family("gemma4_shared"))).spec;
  std::vector<int> owners;
  for (const LayerSpec& layer : shared.layers) owners.push_back(layer.mixer.kv_layer);
  EXPECT_EQ(owners, (std::vector{-1, -1, -1, -1, 2, 2, 3}));
  EXPECT_EQ(shared.layers[6].mixer.k.weight, kNoTensor);

  TinyModel orphan = tiny_family("gemma4_shared");
  orphan.slides = {true, true, true, true, true, true, false};
  expect_complaint(tiny("broken", orphan), "layer 6 has no keys and values, and no layer before it");
  orphan = tiny_family("gemma4");
  orphan.settings["attention.shared_kv_layers"] = 6;
  expect_complaint(tiny("broken", orphan), "out of range");
}

TEST(LoadModel, OldFilesOfMiniCpmHaveItsScales) {  // hidden states are divided by width / 256, as in the authors' code
  const ModelSpec spec = load_model(tiny("minicpm", {.architecture = "minicpm", .n_layer = 4})).spec;
  EXPECT_FLOAT_EQ(spec.embedding_scale, 12);
  EXPECT_FLOAT_EQ(spec.residual_scale, 0.7F);
  EXPECT_FLOAT_EQ(spec.logit_scale, 4);
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

TEST(LoadModel, TheFileSaysWhatEmbeddingsAreMadeFrom) {
  const auto pooling = [](std::optional<int> said) {
    TinyModel model;
    if (said) model.settings["pooling_type"] = *said;
    return load_model(tiny("pooled", model)).spec.pooling;
  };
  EXPECT_EQ(pooling({}), Pooling::kUnsaid);
  EXPECT_EQ(pooling(0), Pooling::kUnsaid);
  EXPECT_EQ(pooling(1), Pooling::kMean);
  EXPECT_EQ(pooling(2), Pooling::kOther);
  EXPECT_EQ(pooling(3), Pooling::kLast);
  EXPECT_EQ(pooling(4), Pooling::kOther);
  EXPECT_THROW(pooling(5), LoadError);
}

TEST(LoadModel, SettingsThatNobodyCanFollowAreErrors) {
  const auto with = [](TinyModel model, const std::string& key, const test::TinySetting& value) {
    model.settings[key] = value;
    return tiny("broken", model);
  };
  expect_complaint(with({}, "rope.scaling.type", "dynamic"), "positions are scaled by 'dynamic'");
  expect_complaint(with({}, "rope.freq_base", 0.0F), "make no sense");
  expect_complaint(with(tiny_family("llama_yarn"), "rope.freq_base", 1.0F), "YaRN");
  TinyModel granite = tiny_family("granite");
  granite.experts.n = 4;
  expect_complaint(tiny("granite_experts", granite), "experts are not built yet for the architecture 'granite'");
  expect_complaint(with(tiny_family("qwen3moe"), "expert_used_count", 17), "out of range");
  expect_complaint(with(tiny_family("qwen3moe"), "expert_group_count", 4), "experts in groups");
  expect_complaint(with(tiny_family("qwen3moe"), "expert_feed_forward_length", 40), "[64, 64, 16]");
  expect_complaint(with(tiny_family("gemma3"), "attention.sliding_window", -1), "out of range");
  expect_complaint(with(tiny_family("gemma3"), "attention.sliding_window_pattern", std::vector{true, false}),
                   "2 values where 7 are needed");
  expect_complaint(with(tiny_family("granite"), "logit_scale", std::numeric_limits<float>::infinity()), "out of range");
  expect_complaint(with(tiny_family("granite"), "logit_scale", 1e-40F), "logits divided by 1e-40 make no sense");
  for (const char* family : {"gemma3", "spark2_5", "gemma4"}) {
    expect_complaint(with(tiny_family(family), "rope.freq_base_swa", 0.0F), "rope base 0, ");
  }
  TinyModel magnified = tiny_family("llama_yarn");
  magnified.settings["rope.scaling.yarn_log_multiplier"] = -6.0F;
  expect_complaint(with(magnified, "rope.scaling.attn_factor", 3e38F), "make no sense");
  expect_complaint(with({}, "nextn_predict_layers", 2), "no layers are left");
  expect_complaint(with(tiny_family("glm4"), "rope.dimension_sections", std::vector{true, true, true, false}),
                   "more than one dimension");
  for (const std::vector<int>& pairs : {std::vector{2, 3, 2, 0}, {2, 3, 3, 1}, {9, 1, 1, 0}, {-1, 8, 1, 0}}) {
    expect_complaint(with(tiny_family("qwen2vl"), "rope.dimension_sections", pairs), "pairs");
  }
  expect_complaint(with(tiny_family("qwen3vl"), "n_deepstack_layers", 2), "out of range");
  TinyModel phi = tiny_family("phi3");
  phi.wrong_shape = "blk.1.attn_qkv.weight";
  expect_complaint(tiny("broken", phi), "has the shape [64, 127] where [64, 128] is needed");
}

TEST(LoadModel, RopeFactorsFitEachLayersRope) {
  TinyModel spark = tiny_family("spark2_5");  // turns 16 values of a head, and 24 in layers that slide
  spark.rope_factors = true;
  expect_complaint(tiny("broken", spark), "24 values of a head turn in layer 0, but the file has factors for 8 pairs");
  spark.settings["rope.dimension_count_swa"] = 16;
  const ModelSpec spec = load_model(tiny("factors", spark)).spec;
  EXPECT_EQ(spec.ropes.at(1).freq_factors, spec.ropes.at(0).freq_factors);
}

TEST(LoadModel, RopeFactorsAreNumbersAboveNull) {
  for (const float factor : {-3.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    expect_complaint(tiny("broken", {.rope_factors = true, .rope_factor = factor}), "rope_freqs.weight has the factor");
}

TEST(LoadModel, LayersThatSeeTheSamePositionsHaveTheSameHeads) {
  TinyModel wide = tiny_family("gemma4");
  wide.settings["attention.sliding_window"] = 512;  // the model's whole context: no layer slides, but heads differ
  expect_complaint(tiny("broken", wide), "layers 0 and 2 see the same positions, but have other heads");
}

TEST(LoadModel, ScoresHaveAScaleThatFitsAllHeads) {
  TinyModel spark = tiny_family("spark2_5");
  spark.sliding_head_dim = 16;
  spark.settings["rope.dimension_count_swa"] = 16;
  expect_complaint(tiny("broken", spark), "heads of 16 values in layer 0 and of 32 in others");
  EXPECT_EQ(load_model(tiny("gemma4", tiny_family("gemma4"))).spec.attention_scale, 1);
  const TinyModel gemma2 = {.architecture = "gemma2",
                            .n_layer = 46,  // as many as the largest one has: it divides by n_embd / n_head
                            .n_embd = 32,
                            .n_head = 64,
                            .head_dim = 2,
                            .n_ff = 32,
                            .norms_behind = true};
  expect_complaint(tiny("broken", gemma2), "64 heads over 32 values of an embedding make no sense");
}

TEST(LoadModel, Llama4WithoutChunksIsRefused) {
  TinyModel llama4 = tiny_family("llama4");
  EXPECT_NO_THROW(load_model(tiny("chunks", llama4)));
  llama4.settings["attention.sliding_window"] = 0;
  expect_complaint(tiny("broken", llama4), "llama4.attention.sliding_window = 0: layers without chunks");
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
  expect_complaint(write("GG"), "is not a GGUF file: it begins with 'GG'");
  expect_complaint(write("<html><head>"), "it begins with '<htm': was the download complete?");
  expect_complaint(write(std::string("\0\x1b[31m", 6)), R"(it begins with '\x00\x1b[3')");
  expect_complaint(write("GGUF"), "truncated");
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
  const std::size_t header = load_model(path).file->metadata_bytes(0).size();
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

/// A header that claims what isn't there.
TEST(LoadModel, CountsAndSizesThatLie) {
  const std::string bytes = read(tiny("lies", {}));
  const auto with = [&](std::size_t at, std::uint64_t number) {
    std::string bad = bytes;
    std::memcpy(bad.data() + at, &number, sizeof(number));
    return write(bad);
  };
  constexpr std::size_t kTensors = 8, kKeys = 16, kFirstKey = 24;
  for (const std::uint64_t many : {1ULL << 20, 1ULL << 40, ~0ULL}) {
    expect_complaint(with(kTensors, many), "tensors");
    expect_complaint(with(kKeys, many), "metadata keys");
  }
  expect_complaint(with(kTensors, 1000), "damaged");  // the weights are no tensor table
  for (const std::uint64_t size : {1ULL << 30, 1ULL << 40, ~0ULL}) expect_complaint(with(kFirstKey, size), "truncated");
  expect_complaint(with(kFirstKey, 0), "without a name");
  expect_complaint(with(kFirstKey, 1 << 15), "name of 32768 bytes");

  const auto with_tensor = [&](const std::string& name, std::size_t at, std::uint64_t number) {
    const std::size_t end =
        bytes.rfind(name) + name.size();  // behind it: dimensions (4), two sizes (16), type (4), offset
    return with(end + at, number);
  };
  const std::string q = "blk.0.attn_q.weight";
  for (const std::uint64_t size : {1ULL << 40, 1ULL << 63, ~0ULL}) {
    expect_complaint(with_tensor(q, 4, size), q + " with an impossible shape");
  }
  expect_complaint(with_tensor(q, 12, 1ULL << 30), q + " ends beyond the file's");
  for (const std::uint64_t offset : {1ULL << 40, 1ULL << 63, ~0ULL - 31}) {
    expect_complaint(with_tensor(q, 24, offset), q + " ends beyond the file's");
  }
  expect_complaint(with_tensor(q, 24, 1), q + " at an unaligned place");
}

TEST(LoadModel, TypesThatAreNoWeights) {
  for (const auto& [type, name] : {std::pair(24, "I8"), {26, "I32"}, {28, "F64"}, {9, "Q8_1"}, {15, "Q8_K"}}) {
    std::string bytes = read(tiny("types", {.n_embd = 256, .head_dim = 64}));
    const std::string tensor = "blk.0.attn_q.weight";
    std::memcpy(bytes.data() + bytes.rfind(tensor) + tensor.size() + 20, &type, sizeof(type));
    if (type == 28) bytes += std::string(1 << 20, '\0');  // twice as large as the tensor that was there
    expect_complaint(write(bytes), "tensor " + tensor + " has the type " + name);
  }
}

TEST(LoadModel, QuotesADamagedFileOnOneLine) {
  expect_complaint(tiny("odd", {.architecture = "two\nlines\x1b"}), "'two?lines?'");
  EXPECT_LT(std::string(LoadError(std::string(10'000, 'x')).what()).size(), 5000U);
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
