// A small decoder's step on the GPU, decodes and chunks of prompts over a tree, against the same in double precision.
// Prints a line a case; exits with 1 if an error is too large. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include "attention/cuda/block_order.h"
#include "cuda/run_program.h"
#include "matmul/cuda/quant_pack.h"
#include "matmul/quant_weights.h"
#include "support/cuda_decoder.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using matmul::QuantType;
using test::DeviceBytes;
using test::LlamaShape;
using Doubles = std::vector<double>;

constexpr int kLayers = 3;

double to_bf16(double x) {
  return test::from_number(Number::kBf16, test::to_number(Number::kBf16, static_cast<float>(x)));
}

/// Rows of n_in weights, and the same packed on the device.
struct Matrix {
  int n_in, n_out;
  Doubles weights;
  QuantType type;
  DeviceBytes packed;
  std::size_t packed_bytes = 0;

  /// pairs: of the first half of the outputs and the other one.
  Matrix(QuantType of_type, int in, int out, std::mt19937& random, bool pairs = false)
      : n_in(in), n_out(out), type(of_type) {
    const test::QuantWeights w = test::random_weights(type, in, out, random);
    for (const test::Weight& weight : w.weights) weights.push_back(weight.scaled() + weight.offset());
    const std::span<const std::byte> bytes = w.bytes;
    const std::size_t half = bytes.size() / 2;
    const std::vector<std::byte> on_host =
        pairs ? matmul::cuda::pack_pairs(type, in, out / 2, bytes.first(half), bytes.subspan(half))
              : matmul::cuda::pack(type, in, out, bytes);
    packed = DeviceBytes(on_host);
    packed_bytes = on_host.size();
  }
  executor::cuda::PackedMatrix device() const { return {type, packed.as<std::byte>()}; }
  /// Weights of a norm whose product is about 1, as in a trained model: else softmax makes much of little.
  float norm_for_ones() const {
    double squares = 0.0;
    for (const double w : weights) squares += w * w;
    return static_cast<float>(1.0 / std::sqrt(squares / n_out));
  }
  Doubles multiply(const Doubles& x) const {
    Doubles y(static_cast<std::size_t>(n_out));
    for (std::size_t o = 0; o < y.size(); ++o)
      for (std::size_t i = 0; i < x.size(); ++i) y[o] += weights[o * x.size() + i] * x[i];
    return y;
  }
};

struct Vector {
  std::vector<float> host;
  DeviceBytes device;
  Vector(int n, float mean, std::mt19937& random) {
    std::normal_distribution<float> normal(mean, 0.3F * mean);
    for (int i = 0; i < n; ++i) host.push_back(normal(random));
    device = DeviceBytes(host);
  }
};

Doubles normed(const Doubles& x, const std::vector<float>& weights, double eps) {
  double squares = 0.0;
  for (const double v : x) squares += v * v;
  Doubles out;
  for (std::size_t i = 0; i < x.size(); ++i)
    out.push_back(to_bf16(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps) * weights[i]));
  return out;
}

struct Layer {
  bool pairs;  ///< gate and up are one product
  Matrix qkv, output, gate_up, down;
  Vector attention_norm, ff_norm;
  DeviceBytes keys, values;
  Doubles key_slots, value_slots;  ///< [slot][kv head][dim]

  Layer(const LlamaShape& s, QuantType type, bool are_pairs, std::mt19937& random)
      : pairs(are_pairs),
        qkv(type, s.n_embd, (s.n_head + 2 * s.n_kv_head) * s.head_dim, random),
        output(type, s.n_head * s.head_dim, s.n_embd, random),
        gate_up(type, s.n_embd, 2 * s.n_ff, random, pairs),
        down(type, s.n_ff, s.n_embd, random),
        attention_norm(s.n_embd, qkv.norm_for_ones(), random),
        ff_norm(s.n_embd, gate_up.norm_for_ones(), random) {}

  executor::cuda::PackedMatrices gate_and_up() const {
    if (pairs) return {{gate_up.device(), gate_up.n_out}};
    executor::cuda::PackedMatrix up = gate_up.device();
    up.weights += gate_up.packed_bytes / 2;
    return {{gate_up.device(), gate_up.n_out / 2}, {up, gate_up.n_out / 2}};
  }

  /// Random numbers in all slots.
  void fill_pool(const LlamaShape& s, int n_blocks, std::mt19937& random) {
    const int block_bytes = 32 * s.n_kv_head * s.head_dim * 2;
    std::normal_distribution<float> normal;
    for (const bool of_keys : {true, false}) {
      std::vector<std::byte> pool(static_cast<std::size_t>(n_blocks * block_bytes));
      Doubles& slots = of_keys ? key_slots : value_slots;
      for (int slot = 0; slot < n_blocks * 32; ++slot) {
        for (int h = 0; h < s.n_kv_head; ++h) {
          for (int d = 0; d < s.head_dim; ++d) {
            const std::uint16_t bits = test::to_number(Number::kBf16, normal(random));
            slots.push_back(test::from_number(Number::kBf16, bits));
            std::memcpy(&pool[static_cast<std::size_t>(slot / 32 * block_bytes + h * 32 * s.head_dim * 2) +
                              attention::cuda::offset_in_head(s.head_dim, 32, slot % 32, d)],
                        &bits, 2);
          }
        }
      }
      (of_keys ? keys : values) = DeviceBytes(pool);
    }
  }
};

void turn(double* head, int dim, int position, const std::vector<float>& frequencies) {
  for (int i = 0; i < dim / 2; ++i) {
    const double angle = position * static_cast<double>(frequencies[static_cast<std::size_t>(i)]);
    const double a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * std::cos(angle) - b * std::sin(angle);
    head[2 * i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}

/// All rows at once, layer by layer: rows see each other.
class Reference {
 public:
  Reference(const LlamaShape& s, const test::AttentionCase& c, const std::vector<float>& frequencies)
      : s_(s), c_(c), places_(c), frequencies_(frequencies) {}

  void attend(Layer& layer, std::vector<Doubles>& rows) const {
    std::vector<Doubles> queries;
    const auto n_q = static_cast<std::size_t>(s_.n_head * s_.head_dim),
               n_kv = static_cast<std::size_t>(s_.n_kv_head * s_.head_dim);
    for (std::size_t row = 0; row < rows.size(); ++row) {
      Doubles qkv = layer.qkv.multiply(normed(rows[row], layer.attention_norm.host, s_.eps));
      for (int h = 0; h < s_.n_head + s_.n_kv_head; ++h)
        turn(qkv.data() + h * s_.head_dim, s_.head_dim, places_.positions[row], frequencies_);
      for (double& x : qkv) x = to_bf16(x);
      const std::size_t at = static_cast<std::size_t>(places_.slots[row]) * n_kv;
      for (std::size_t i = 0; i < n_kv; ++i) {
        layer.key_slots[at + i] = qkv[n_q + i];
        layer.value_slots[at + i] = qkv[n_q + n_kv + i];
      }
      qkv.resize(n_q);
      queries.push_back(qkv);
    }
    std::size_t row = 0;
    for (const attention::SequenceRows& sequence : c_.rows()) {
      for (int i = 0; i < sequence.n_rows; ++i, ++row) {
        Doubles out;
        for (int h = 0; h < s_.n_head; ++h) {
          const Doubles head = attend_head(layer, sequence, places_.positions[row], queries[row], h);
          out.insert(out.end(), head.begin(), head.end());
        }
        const Doubles y = layer.output.multiply(out);
        for (std::size_t k = 0; k < y.size(); ++k) rows[row][k] += y[k];
      }
    }
  }

  void feed_forward(const Layer& layer, Doubles& row) const {
    const Doubles y = layer.gate_up.multiply(normed(row, layer.ff_norm.host, s_.eps));
    Doubles h;
    const auto n = static_cast<std::size_t>(s_.n_ff);
    for (std::size_t i = 0; i < n; ++i) h.push_back(to_bf16(y[i] / (1.0 + std::exp(-y[i])) * y[n + i]));
    const Doubles plus = layer.down.multiply(h);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] += plus[i];
  }

 private:
  Doubles attend_head(const Layer& layer, const attention::SequenceRows& sequence, int position, const Doubles& q,
                      int h) const {
    const int dim = s_.head_dim, kv = h / (s_.n_head / s_.n_kv_head);
    Doubles scores, out(static_cast<std::size_t>(dim));
    const auto at = [&](int token) {
      return (static_cast<std::size_t>(sequence.table.slot(token)) * static_cast<std::size_t>(s_.n_kv_head) +
              static_cast<std::size_t>(kv)) *
             static_cast<std::size_t>(dim);
    };
    double highest = -INFINITY, sum = 0.0;
    for (int token = 0; token <= position; ++token) {
      double dot = 0.0;
      for (int d = 0; d < dim; ++d)
        dot += q[static_cast<std::size_t>(h * dim + d)] * layer.key_slots[at(token) + static_cast<std::size_t>(d)];
      scores.push_back(dot * c_.heads.scale);
      highest = std::max(highest, scores.back());
    }
    for (int token = 0; token <= position; ++token) {
      const double weight = std::exp(scores[static_cast<std::size_t>(token)] - highest);
      sum += weight;
      for (int d = 0; d < dim; ++d)
        out[static_cast<std::size_t>(d)] += weight * layer.value_slots[at(token) + static_cast<std::size_t>(d)];
    }
    for (double& x : out) x = to_bf16(x / sum);
    return out;
  }

  const LlamaShape& s_;
  const test::AttentionCase& c_;
  test::RowPlaces places_;
  const std::vector<float>& frequencies_;
};

/// Rounding to bf16 at each stage, which both do, goes other ways after other sums, and attention rounds its weights,
/// too.
bool check(QuantType type, std::mt19937& random) {
  const LlamaShape shape = {.n_embd = 512, .n_head = 8, .n_kv_head = 2, .head_dim = 64, .n_ff = 768, .n_vocab = 777};
  const std::vector<test::Path> paths = {{.length = 96, .reads = false},
                                         {.parent = 0, .shared = 96, .length = 96 + 41},
                                         {.parent = 0, .shared = 64, .length = 64 + 50, .n_rows = 13},
                                         {.length = 5, .n_rows = 5},
                                         {.parent = 0, .shared = 96, .length = 96 + 2}};
  test::AttentionCase c = test::make_case("decoder", paths, 32, {}, random());
  c.heads = {.n_head = 8, .n_kv_head = 2, .head_dim = 64, .scale = 0.125F};
  std::vector<Layer> layers;
  for (int i = 0; i < kLayers; ++i)
    layers.emplace_back(shape, type, i != 1, random).fill_pool(shape, c.n_blocks, random);
  const Matrix embeddings(type, shape.n_embd, shape.n_vocab, random),
      logits(QuantType::kQ6K, shape.n_embd, shape.n_vocab, random);
  const Vector final_norm(shape.n_embd, logits.norm_for_ones(), random);
  std::vector<float> frequencies;
  for (int i = 0; i < 32; ++i) frequencies.push_back(static_cast<float>(std::pow(10000.0, -i / 32.0)));
  const DeviceBytes device_frequencies(frequencies);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < c.n_rows(); ++i) tokens.push_back(static_cast<std::int32_t>(random() % 777));

  std::vector<executor::cuda::DecoderLayer> on_device;
  for (const Layer& l : layers) {
    on_device.push_back({.attention_norm = l.attention_norm.device.as<float>(),
                         .ff_norm = l.ff_norm.device.as<float>(),
                         .qkv = {{l.qkv.device(), l.qkv.n_out}},
                         .output = l.output.device(),
                         .gate_up = l.gate_and_up(),
                         .down = l.down.device(),
                         .rotation = {shape.head_dim, false, device_frequencies.as<float>()},
                         .keys = l.keys.as<std::byte>(),
                         .values = l.values.as<std::byte>()});
  }
  const executor::cuda::Decoder decoder = {shape.decoder(), on_device, embeddings.device(), logits.device(),
                                           final_norm.device.as<float>()};
  const test::DecoderStepMemory memory(shape, c, tokens);
  memory.launch(decoder, test::current_gpu());
  const std::vector<float> got = memory.logits();
  const std::vector<std::int32_t> drawn = memory.drawn();

  std::vector<Doubles> rows;
  for (const std::int32_t token : tokens) {
    const auto begin = embeddings.weights.begin() + token * shape.n_embd;
    rows.emplace_back(begin, begin + shape.n_embd);
  }
  const Reference reference(shape, c, frequencies);
  for (Layer& layer : layers) {
    reference.attend(layer, rows);
    for (Doubles& row : rows) reference.feed_forward(layer, row);
  }
  double error = 0.0, norm = 0.0;
  bool greedy = true;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const Doubles expected = logits.multiply(normed(rows[row], final_norm.host, shape.eps));
    const float* of_row = got.data() + row * 777;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += (of_row[i] - expected[i]) * (of_row[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    greedy = greedy && drawn[row] == std::max_element(of_row, of_row + 777) - of_row;
  }
  error = std::sqrt(error / norm);
  const bool ok = error < 4e-2 && greedy;
  std::printf("%-6s decoder of type %d, %d rows: error %.1e%s\n", ok ? "ok" : "FAILED", static_cast<int>(type),
              c.n_rows(), error, greedy ? "" : ", other tokens than its own logits'");
  return ok;
}

int run() {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::test_seed()));
  int failed = 0;
  for (const QuantType type : {QuantType::kBf16, QuantType::kQ4K, QuantType::kQ8_0, QuantType::kQ4_0})
    failed += check(type, random) ? 0 : 1;
  std::printf("%d of 4 failed\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main() {
  return coppice::test::run_on_each_gpu(coppice::run);
}
