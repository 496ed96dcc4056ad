// A decode step of an 8B Llama shape on this GPU, from tokens to tokens, as one CUDA graph, and a prompt to its last
// row's logits: random weights, made here. Beside each its bound: the bytes of all weights and of the keys and values
// that some row sees, over the bandwidth that a device-to-device copy reaches in this run.
//   step_cuda_bench [--json FILE] [--only TEXT]    TEXT: steps that have it in "weights, step"
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "cuda/random_packed.h"
#include "cuda/replay.h"
#include "executor/cuda/operators.h"
#include "support/cuda_decoder.h"

namespace coppice {
namespace {

using executor::cuda::PackedMatrix;
using matmul::QuantType;
using test::DeviceBytes;

constexpr test::LlamaShape kShape = {
    .n_embd = 4096, .n_head = 32, .n_kv_head = 8, .head_dim = 128, .n_ff = 14336, .n_vocab = 128256};
constexpr int kLayers = 32;

/// Bytes repeated until they fill device memory.
DeviceBytes repeated(const std::vector<std::byte>& some, std::size_t n) {
  DeviceBytes made(n);
  for (std::size_t at = 0; at < n; at += some.size()) {
    test::check_cuda(
        cudaMemcpy(made.as<std::byte>() + at, some.data(), std::min(some.size(), n - at), cudaMemcpyHostToDevice),
        "weights");
  }
  return made;
}

class RandomDecoder {
 public:
  RandomDecoder(QuantType layers, QuantType logits) {
    std::vector<float> ones(static_cast<std::size_t>(kShape.n_embd), 1.0F), frequencies;
    for (int i = 0; i < kShape.head_dim / 2; ++i)
      frequencies.push_back(static_cast<float>(std::pow(500000.0, -2.0 * i / kShape.head_dim)));
    ones_ = DeviceBytes(ones);
    frequencies_ = DeviceBytes(frequencies);
    const int n_q = kShape.n_head * kShape.head_dim, n_kv = kShape.n_kv_head * kShape.head_dim;
    for (int i = 0; i < kLayers; ++i) {
      layers_.push_back({.attention_norm = ones_.as<float>(),
                         .ff_norm = ones_.as<float>(),
                         .qkv = {{add(layers, kShape.n_embd, n_q + 2 * n_kv), n_q + 2 * n_kv}},
                         .output = add(layers, n_q, kShape.n_embd),
                         .gate_up = {{add(layers, kShape.n_embd, 2 * kShape.n_ff), 2 * kShape.n_ff}},
                         .down = add(layers, kShape.n_ff, kShape.n_embd),
                         .rotation = {kShape.head_dim, false, frequencies_.as<float>()}});
    }
    logits_ = add(logits, kShape.n_embd, kShape.n_vocab);
    read_ = bytes_;
    embeddings_ = add(logits, kShape.n_embd, kShape.n_vocab);
  }

  /// With a pool for the case; the last case's goes.
  executor::cuda::Decoder on(const test::AttentionCase& c) {
    const std::size_t half =
        static_cast<std::size_t>(c.n_blocks) * 32 * static_cast<std::size_t>(kShape.n_kv_head * kShape.head_dim * 2);
    std::mt19937_64 random(3);
    pool_ = {};
    pool_ = repeated(bench::random_packed(QuantType::kBf16, std::size_t{64} << 20, random), 2 * half * kLayers);
    for (int i = 0; i < kLayers; ++i) {
      executor::cuda::DecoderLayer& layer = layers_[static_cast<std::size_t>(i)];
      layer.keys = pool_.as<std::byte>() + 2 * half * static_cast<std::size_t>(i);
      layer.values = layer.keys + half;
    }
    return {kShape.decoder(), layers_, embeddings_, logits_, ones_.as<float>()};
  }
  double bytes() const { return read_; }  ///< of the weights that a step reads

 private:
  PackedMatrix add(QuantType type, int n_in, int n_out) {
    const auto chunk = static_cast<std::size_t>(matmul::cuda::chunk_form(type).bytes());
    std::mt19937_64 random(matrices_.size() + 1);
    const std::size_t bytes = bench::packed_bytes(type, n_in, n_out);
    if (some_.empty() || some_type_ != type) some_ = bench::random_packed(type, chunk << 14, random);
    some_type_ = type;
    bytes_ += static_cast<double>(bytes);
    matrices_.push_back(repeated(some_, bytes));
    return {type, matrices_.back().as<std::byte>()};
  }

  std::vector<std::byte> some_;
  QuantType some_type_ = QuantType::kBf16;
  std::vector<DeviceBytes> matrices_;
  DeviceBytes ones_, frequencies_, pool_;
  double bytes_ = 0.0, read_ = 0.0;
  std::vector<executor::cuda::DecoderLayer> layers_;
  PackedMatrix embeddings_, logits_;
};

test::AttentionCase decodes(const char* name, int shared, int own, int n) {
  std::vector<test::Path> paths;
  if (shared > 0) paths.push_back({.length = shared, .reads = false});
  for (int i = 0; i < n; ++i) {
    paths.push_back(shared > 0 ? test::Path{.parent = 0, .shared = shared, .length = shared + own}
                               : test::Path{.length = own});
  }
  test::AttentionCase c = test::make_case(name, paths, 32, {}, 1);
  c.heads = {.n_head = 32, .n_kv_head = 8, .head_dim = 128, .scale = 1.0F / std::sqrt(128.0F)};
  return c;
}

test::AttentionCase prompt(const char* name, int n) {
  test::AttentionCase c = test::make_case(name, std::vector<test::Path>{{.length = n, .n_rows = n}}, 32, {}, 1);
  c.heads = {.n_head = 32, .n_kv_head = 8, .head_dim = 128, .scale = 1.0F / std::sqrt(128.0F)};
  return c;
}

/// What lies between products, each alone: many launches behind each other, layer by layer.
void time_parts(const executor::cuda::Decoder& decoder, const test::DecoderStepMemory& memory) {
  const executor::cuda::DecoderStep& step = memory.step();
  const executor::cuda::GroupStep& group = step.groups[0];
  const auto time = [&](const char* name, auto launch) {
    bench::Graph graph(
        [&](int layer, const cuda::Gpu& gpu) {
          if (const char* error = launch(decoder.layers[static_cast<std::size_t>(layer)], gpu))
            throw std::runtime_error(error);
        },
        kLayers);
    std::printf("  %s %.2f", name, graph.time(10).median);
  };
  using namespace executor::cuda;
  const int n_rows = step.n_rows, n_q = kShape.n_head * kShape.head_dim, n_kv = kShape.n_kv_head * kShape.head_dim;
  const StepScratch& scratch = step.scratch;
  std::printf(" ");
  time("norm", [&](const DecoderLayer& l, const cuda::Gpu& gpu) {
    return launch(AddNorm{.n = kShape.n_embd,
                          .n_rows = n_rows,
                          .residual = scratch.residual,
                          .plus = scratch.product,
                          .norm = l.ff_norm,
                          .eps = kShape.eps,
                          .out = scratch.normed},
                  gpu);
  });
  time("rows", [&](const DecoderLayer& l, const cuda::Gpu& gpu) {
    return launch(EnterRows{.n_rows = n_rows,
                            .n_head = kShape.n_head,
                            .n_kv_head = kShape.n_kv_head,
                            .head_dim = kShape.head_dim,
                            .from_q = l.qkv.rows(scratch.product, n_rows, 0),
                            .from_k = l.qkv.rows(scratch.product, n_rows, n_q),
                            .from_v = l.qkv.rows(scratch.product, n_rows, n_q + n_kv),
                            .n_turned = kShape.head_dim,
                            .frequencies = l.rotation.frequencies,
                            .positions = step.positions,
                            .slots = group.slots,
                            .q = scratch.q,
                            .keys = l.keys,
                            .values = l.values,
                            .block_bytes = group.attention.block_bytes},
                  gpu);
  });
  time("attention", [&](const DecoderLayer& l, const cuda::Gpu& gpu) {
    attention::cuda::TreeAttention attention = group.attention;
    attention.keys = l.keys;
    attention.values = l.values;
    return launch_tree_attention(attention, gpu.n_multiprocessors(), gpu);
  });
  time("sampler", [&](const DecoderLayer&, const cuda::Gpu& gpu) { return launch(memory.sampling(), gpu); });
  const auto product = [&](const char* name, auto matrix_of, const void* x, int n_in, int n_out) {
    time(name, [&](const DecoderLayer& l, const cuda::Gpu& gpu) {
      const PackedMatrix m = matrix_of(l);
      return matmul::cuda::launch_quant_product(
          {m.type, n_in, n_out, n_rows, m.weights, x, scratch.product, scratch.products}, gpu);
    });
  };
  product(
      "qkv", [](const DecoderLayer& l) { return l.qkv.parts[0].matrix; }, scratch.normed, kShape.n_embd,
      n_q + 2 * n_kv);
  product("output", [](const DecoderLayer& l) { return l.output; }, group.attention.out, n_q, kShape.n_embd);
  time("gate_up", [&](const DecoderLayer& l, const cuda::Gpu& gpu) {
    const PackedMatrix m = l.gate_up.parts[0].matrix;
    return matmul::cuda::launch_quant_product({.type = m.type,
                                               .n_in = kShape.n_embd,
                                               .n_out = 2 * kShape.n_ff,
                                               .n_rows = n_rows,
                                               .weights = m.weights,
                                               .x = scratch.normed,
                                               .scratch = scratch.products,
                                               .gated = {.out = scratch.gated}},
                                              gpu);
  });
  product("down", [](const DecoderLayer& l) { return l.down; }, scratch.gated, kShape.n_ff, kShape.n_embd);
  std::printf("\n");
  std::fflush(stdout);
}

void run(const char* json_path, const char* only) {
  cudaDeviceProp device{};
  test::check_cuda(cudaGetDeviceProperties(&device, 0), "device");
  const double bandwidth = bench::copy_bandwidth();
  std::printf("%s, copies at %.2f TB/s\n", device.name, bandwidth * 1e-12);
  std::FILE* json = json_path != nullptr ? std::fopen(json_path, "w") : nullptr;
  if (json != nullptr)
    std::fprintf(json, "{\n  \"device\": \"%s\",\n  \"steps\": [\n    {\"case\": \"copy\", \"tb_s\": %.3f}",
                 device.name, bandwidth * 1e-12);
  struct Weights {
    const char* name;
    QuantType layers, logits;
  };
  for (const Weights& w :
       {Weights{"bf16", QuantType::kBf16, QuantType::kBf16}, Weights{"Q8_0", QuantType::kQ8_0, QuantType::kQ8_0},
        Weights{"Q4_K, logits Q6_K", QuantType::kQ4K, QuantType::kQ6K}}) {
    std::unique_ptr<RandomDecoder> decoder;
    for (const test::AttentionCase& c :
         {decodes("depth 2,048, B = 1", 0, 2048, 1), decodes("2,048 shared + 256, B = 8", 2048, 256, 8),
          decodes("8,192 shared + 256, B = 32", 8192, 256, 32), decodes("8,192 shared + 256, B = 64", 8192, 256, 64),
          prompt("prompt of 2,048", 2048)}) {
      if ((std::string(w.name) + ", " + c.name).find(only) == std::string::npos) continue;
      if (decoder == nullptr) decoder = std::make_unique<RandomDecoder>(w.layers, w.logits);
      const bool is_prompt = c.sequences.size() == 1 && c.n_rows() > 1;
      const executor::cuda::Decoder on_device = decoder->on(c);
      std::vector<std::int32_t> tokens;
      for (int i = 0; i < c.n_rows(); ++i) tokens.push_back(1000 + 7 * i);
      const test::DecoderStepMemory memory(kShape, c, tokens);
      bench::Graph graph(
          [&](int, const cuda::Gpu& gpu) {
            is_prompt ? memory.launch_prompt(on_device, gpu) : memory.launch(on_device, gpu);
          },
          1);
      const bench::Timing time = graph.time(20);
      const double kv = static_cast<double>(c.unique_slots()) * kShape.n_kv_head * kShape.head_dim * 4.0 * kLayers;
      const double bound = (decoder->bytes() + kv) / bandwidth * 1e6;
      std::printf("%-18s %-28s %8.0f us (least %.0f), bound %.0f, %7.0f tokens/s\n", w.name, c.name.c_str(),
                  time.median, time.least, bound, 1e6 * c.n_rows() / time.median);
      std::fflush(stdout);
      time_parts(on_device, memory);
      if (json != nullptr) {
        std::fprintf(
            json,
            ",\n    {\"weights\": \"%s\", \"case\": \"%s\", \"us\": %.0f, \"bound_us\": %.0f, \"tokens_s\": %.0f}",
            w.name, c.name.c_str(), time.median, bound, 1e6 * c.n_rows() / time.median);
      }
    }
  }
  if (json != nullptr) {
    std::fprintf(json, "\n  ]\n}\n");
    std::fclose(json);
  }
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  const char *json = nullptr, *only = "";
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--json") == 0) json = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  try {
    coppice::run(json, only);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
