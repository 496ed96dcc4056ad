// Good files become specs; bad files become one clear sentence, never an abort.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "model/families.h"
#include "model/model.h"
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
  EXPECT_EQ(m.spec.rope.dims, 16);
  EXPECT_FLOAT_EQ(m.spec.rope.base, 10000);
  EXPECT_NE(m.spec.rope.freq_factors, kNoTensor);
  EXPECT_NE(m.spec.output, m.spec.embedding);
  ASSERT_EQ(m.spec.layers.size(), 2U);
  EXPECT_NE(m.spec.layers[1].feed_forward.down.bias, kNoTensor);
  EXPECT_EQ(m.file->tensors()[static_cast<std::size_t>(m.spec.layers[1].feed_forward.down.weight)].name,
            "blk.1.ffn_down.weight");
  const ModelSpec tied = load_model(tiny("tied", {})).spec;
  EXPECT_EQ(tied.output, tied.embedding);
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
