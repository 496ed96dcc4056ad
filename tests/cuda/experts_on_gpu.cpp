// Experts on the GPU, piece by piece: products of rows sorted by part, against the weights read one by one in double precision; choice, order
// and sum, against the plain thing. Run twice, products must give the same bits. Prints a line a case; exits with 1 if an error is too large. --small:
// for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "executor/cuda/expert_operators.h"
#include "matmul/cuda/part_product.h"
#include "matmul/quant_weights.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using executor::cuda::ExpertWeights;
using matmul::QuantType;
using matmul::cuda::RowPanel;
using test::DeviceBytes;

struct Run {
  std::mt19937 random;
  int failed = 0, n = 0;

  explicit Run(std::uint64_t seed) : random(static_cast<std::mt19937::result_type>(seed)) {}
  int up_to(int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); }
  bool coin() { return random() % 2 == 0; }
  std::vector<float> normals(int n_numbers) {
    std::normal_distribution<float> normal;
    std::vector<float> x;
    for (int i = 0; i < n_numbers; ++i) x.push_back(normal(random));
    return x;
  }
  void report(const std::string& what, double error, double tolerance) {
    const bool ok = error <= tolerance;  // NaN is not
    std::printf("%-6s %s: error %.1e\n", ok ? "ok" : "FAILED", what.c_str(), error);
    std::fflush(stdout);
    failed += ok ? 0 : 1;
    ++n;
  }
};

void done(const char* error) {
  if (error != nullptr) throw std::runtime_error(error);
  test::check_cuda(cudaDeviceSynchronize(), "launch");
}

template <class T>
std::vector<T> read(const DeviceBytes& from, std::size_t n) {
  std::vector<T> to(n);
  test::check_cuda(cudaMemcpy(to.data(), from.as<void>(), n * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return to;
}
template <class T>
DeviceBytes poisoned(std::size_t n) {
  DeviceBytes made(n * sizeof(T));
  made.fill(0xff);
  return made;
}

// --- products

struct Product {
  QuantType type;
  int n_in, n_out, n_parts, panel_rows;
  std::vector<int> rows;  ///< of each part

  int n_rows() const { return std::accumulate(rows.begin(), rows.end(), 0); }
  bool rounds_weights() const { return panel_rows > 16; }
};

/// Few, many or no rows a part, as experts have them.
Product random_product(QuantType type, int panel_rows, bool small, Run& run) {
  const int unit = matmul::cuda::chunk_form(type).inputs;
  Product p = {
      type, unit * run.up_to((small ? 512 : 1024) / unit), 16 * run.up_to(small ? 10 : 24), run.up_to(9), panel_rows,
      {}};
  for (int part = 0; part < p.n_parts; ++part) {
    const int most = run.coin() ? panel_rows : small ? 2 * panel_rows : 3 * panel_rows;
    p.rows.push_back(run.up_to(3) == 1 ? 0 : run.up_to(most));
  }
  if (p.n_rows() == 0) p.rows.front() = 1;
  return p;
}

std::vector<RowPanel> panels_of(const Product& p) {
  std::vector<RowPanel> panels;
  int first = 0;
  for (int part = 0; part < p.n_parts; ++part) {
    const int end = first + p.rows[static_cast<std::size_t>(part)];
    for (; first < end; first += std::min(p.panel_rows, end - first))
      panels.push_back({part, first, std::min(p.panel_rows, end - first)});
  }
  return panels;
}

/// To bf16, half to even.
double rounded(double weight) {
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(weight));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
  return std::bit_cast<float>(bits);
}

/// The largest error of a part's rows, relative to the sum of absolute terms.
double part_error(const Product& c, const test::QuantWeights& w, const std::vector<std::uint16_t>& x, int first, int n,
                  const std::vector<float>& y) {
  double worst = 0.0;
  for (int o = 0; o < c.n_out; ++o) {
    for (int row = first; row < first + n; ++row) {
      double sum = 0.0, terms = 0.0;
      for (int i = 0; i < c.n_in; ++i) {
        const test::Weight& weight = w.weights[static_cast<std::size_t>(o * c.n_in + i)];
        const double value = weight.scaled() + weight.offset(),
                     v = test::from_number(Number::kBf16, x[static_cast<std::size_t>(row * c.n_in + i)]);
        sum += (c.rounds_weights() ? rounded(value) : value) * v;
        terms += (std::abs(weight.scaled()) + std::abs(weight.offset())) * std::abs(v);
      }
      const double error = std::abs(static_cast<double>(y[static_cast<std::size_t>(row * c.n_out + o)]) - sum) / terms;
      worst = error <= worst ? worst : error;
    }
  }
  return worst;
}

struct Scratch {
  DeviceBytes sums{matmul::cuda::product_scratch_sums() * sizeof(float)};
  DeviceBytes flags{matmul::cuda::kProductFlags * sizeof(std::uint32_t)};
  Scratch() {
    sums.fill(0xff);
    flags.fill(0);
  }
};

void check_product(const Product& c, const Scratch& scratch, Run& run) {
  std::vector<test::QuantWeights> weights;
  std::vector<std::byte> packed;
  std::size_t part_bytes = 0;
  for (int part = 0; part < c.n_parts; ++part) {
    weights.push_back(test::random_weights(c.type, c.n_in, c.n_out, run.random));
    const std::vector<std::byte> one = matmul::cuda::pack(c.type, c.n_in, c.n_out, weights.back().bytes);
    part_bytes = one.size();
    packed.insert(packed.end(), one.begin(), one.end());
  }
  std::vector<std::uint16_t> x;
  for (const float v : run.normals(c.n_rows() * c.n_in)) x.push_back(test::to_number(Number::kBf16, v));
  std::vector<RowPanel> panels = panels_of(c);
  const DeviceBytes n_panels(std::vector{static_cast<std::int32_t>(panels.size())});
  const int most = matmul::cuda::most_panels(c.n_rows(), c.n_parts, c.panel_rows);
  const bool fits = std::ssize(panels) <= most;
  panels.resize(static_cast<std::size_t>(std::max(most, 1)), {1 << 20, 1 << 20, 1 << 20});  // nobody reads these
  const DeviceBytes device_panels(panels), device_weights(packed), rows(x);
  std::vector<std::vector<float>> y;
  const DeviceBytes out(static_cast<std::size_t>(c.n_rows() * c.n_out) * sizeof(float));
  for (int i = 0; i < 2; ++i) {
    out.fill(0xff);
    done(matmul::cuda::launch_part_product({.type = c.type,
                                            .n_in = c.n_in,
                                            .n_out = c.n_out,
                                            .n_rows = c.n_rows(),
                                            .weights = device_weights.as<std::byte>(),
                                            .x = rows.as<void>(),
                                            .y = out.as<float>(),
                                            .scratch = {scratch.sums.as<float>(), scratch.flags.as<std::uint32_t>()}},
                                           {.n_parts = c.n_parts,
                                            .panel_rows = c.panel_rows,
                                            .panels = device_panels.as<RowPanel>(),
                                            .n_panels = n_panels.as<std::int32_t>(),
                                            .part_bytes = static_cast<std::int64_t>(part_bytes)},
                                           nullptr));
    y.push_back(read<float>(out, static_cast<std::size_t>(c.n_rows() * c.n_out)));
  }
  double error = fits && std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)) == 0 ? 0.0 : INFINITY;
  int first = 0;
  for (int part = 0; part < c.n_parts; ++part) {
    const int n = c.rows[static_cast<std::size_t>(part)];
    const double of_part = part_error(c, weights[static_cast<std::size_t>(part)], x, first, n, y[0]);
    error = of_part <= error ? error : of_part;
    first += n;
  }
  // As quant_product_on_gpu.cpp: only sums are rounded, and a tile's weights.
  run.report("type " + std::to_string(static_cast<int>(c.type)) + ", " + std::to_string(c.n_in) + " -> " +
                 std::to_string(c.n_out) + ", " + std::to_string(c.n_rows()) + " rows of " + std::to_string(c.n_parts) +
                 " parts in panels of " + std::to_string(c.panel_rows),
             error, c.rounds_weights() ? 2e-6 + 5e-3 / std::sqrt(c.n_in) : 2e-6);
}

// --- choice, order, sum

struct Choice {
  executor::cuda::ExpertsShape shape;
  int n_rows;
  std::vector<float> scores, bias, selection_bias, scales;  ///< the last three: empty where there is none
};

Choice random_choice(Run& run) {
  Choice c = {.n_rows = run.up_to(70)};
  c.shape.n = run.coin() ? run.up_to(512) : 1 << run.up_to(7);
  c.shape.n_used = run.up_to(std::min(c.shape.n, run.coin() ? 8 : 32));
  c.shape.weights = static_cast<ExpertWeights>(run.up_to(3) - 1);
  c.shape.normalised = run.coin();
  c.shape.scale = run.coin() ? 1.0F : 2.5F;
  c.scores = run.normals(c.n_rows * c.shape.n);
  if (run.coin()) c.bias = run.normals(c.shape.n);
  if (run.coin()) c.selection_bias = run.normals(c.shape.n);
  if (run.coin()) c.scales = run.normals(c.shape.n);
  return c;
}

struct Chosen {
  int expert;
  double weight;
};

/// Of a row, in the order of choice. key: what the experts are chosen by.
std::vector<Chosen> choose(const Choice& c, int row, std::vector<double>& key) {
  const auto n = static_cast<std::size_t>(c.shape.n);
  std::vector<double> scores, weights;
  for (std::size_t e = 0; e < n; ++e) {
    // The sum as f32 has it: a tie there is none in double precision, and chooses otherwise.
    const float score = c.scores[static_cast<std::size_t>(row) * n + e] + (c.bias.empty() ? 0.0F : c.bias[e]);
    scores.push_back(score);
  }
  double sum = 0.0;
  for (const double s : scores) sum += std::exp(s);
  for (const double s : scores) {
    weights.push_back(c.shape.weights == ExpertWeights::kSigmoid   ? 1.0 / (1.0 + std::exp(-s))
                      : c.shape.weights == ExpertWeights::kSoftmax ? std::exp(s) / sum
                                                                   : s);
  }
  key = scores;
  for (std::size_t e = 0; e < n && !c.selection_bias.empty(); ++e) key[e] = weights[e] + c.selection_bias[e];
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int e) { return std::pair(-key[static_cast<std::size_t>(e)], e); });
  std::vector<Chosen> chosen;
  for (int k = 0; k < c.shape.n_used; ++k) {
    const int e = order[static_cast<std::size_t>(k)];
    chosen.push_back({e, weights[static_cast<std::size_t>(e)]});
  }
  double of_chosen = 0.0;
  for (Chosen& one : chosen) {
    if (c.shape.weights == ExpertWeights::kSoftmaxOfChosen) one.weight = std::exp(one.weight);
    of_chosen += one.weight;
  }
  const bool divided = c.shape.normalised || c.shape.weights == ExpertWeights::kSoftmaxOfChosen;
  for (Chosen& one : chosen) {
    one.weight *= c.shape.scale / (divided ? std::max(of_chosen, 6.103515625e-5) : 1.0);
    if (!c.scales.empty()) one.weight *= c.scales[static_cast<std::size_t>(one.expert)];
  }
  return chosen;
}

DeviceBytes or_none(const std::vector<float>& values) {
  return values.empty() ? DeviceBytes() : DeviceBytes(values);
}

void check_choice(Run& run) {
  const Choice c = random_choice(run);
  const auto n_pairs = static_cast<std::size_t>(c.n_rows * c.shape.n_used);
  const DeviceBytes scores(c.scores), bias = or_none(c.bias), selection = or_none(c.selection_bias),
                                      scales = or_none(c.scales), experts = poisoned<std::int32_t>(n_pairs),
                                      weights = poisoned<float>(n_pairs);
  done(launch(executor::cuda::ChooseExperts{.shape = c.shape,
                                            .n_rows = c.n_rows,
                                            .scores = scores.as<float>(),
                                            .bias = bias.as<float>(),
                                            .selection_bias = selection.as<float>(),
                                            .scales = scales.as<float>(),
                                            .experts = experts.as<std::int32_t>(),
                                            .weights = weights.as<float>()},
              nullptr));
  const auto got = read<std::int32_t>(experts, n_pairs);
  const auto got_weights = read<float>(weights, n_pairs);
  double worst = 0.0;
  int others = 0;
  for (int row = 0; row < c.n_rows; ++row) {
    std::vector<double> key;
    const std::vector<Chosen> expected = choose(c, row, key);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      const std::size_t pair = static_cast<std::size_t>(row * c.shape.n_used) + k;
      // Where keys are as good as equal another one may come first.
      const bool same = got[pair] == expected[k].expert;
      const bool there = got[pair] >= 0 && got[pair] < c.shape.n;
      if (!same && (!there || std::abs(key[static_cast<std::size_t>(got[pair])] -
                                       key[static_cast<std::size_t>(expected[k].expert)]) > 1e-6))
        ++others;
      if (!same) continue;
      const double error = std::abs(got_weights[pair] - expected[k].weight) / (std::abs(expected[k].weight) + 1e-4);
      worst = error <= worst ? worst : error;
    }
  }
  run.report("choice of " + std::to_string(c.shape.n_used) + " of " + std::to_string(c.shape.n) + " by " +
                 std::to_string(static_cast<int>(c.shape.weights)) + (c.bias.empty() ? "" : ", bias") +
                 (c.selection_bias.empty() ? "" : ", selection bias") + ", " + std::to_string(others) + " others",
             others == 0 ? worst : INFINITY, 2e-4);
}

/// Rows through the order and back: what each pair brings is its row, and the sum is the plain one.
void check_order(Run& run) {
  const int n = run.up_to(run.coin() ? 128 : 8), n_used = run.up_to(std::min(n, 8)),
            n_rows = run.up_to(run.coin() ? 600 : 6);
  const int n_embd = 64 * run.up_to(6),
            panel_rows = std::array{1, 5, 16, 64, 128}[static_cast<std::size_t>(run.up_to(5) - 1)];
  const int n_pairs = n_rows * n_used;
  const auto pairs = static_cast<std::size_t>(n_pairs);
  std::vector<std::int32_t> experts, all(static_cast<std::size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  for (int row = 0; row < n_rows; ++row) {
    if (run.up_to(4) > 1) std::ranges::shuffle(all, run.random);  // else as the row before: some have many
    experts.insert(experts.end(), all.begin(), all.begin() + n_used);
  }
  std::vector<std::uint16_t> x;
  for (int i = 0; i < n_rows * n_embd; ++i) x.push_back(static_cast<std::uint16_t>(run.random()));
  const int most = matmul::cuda::most_panels(n_pairs, n, panel_rows);
  const DeviceBytes device_experts(experts), device_x(x),
      positions = poisoned<std::int32_t>(pairs), sorted = poisoned<std::int32_t>(pairs),
      parts = poisoned<std::int32_t>(pairs),
      sorted_x = poisoned<std::uint16_t>(pairs * static_cast<std::size_t>(n_embd)),
      panels = poisoned<RowPanel>(static_cast<std::size_t>(most)), n_panels = poisoned<std::int32_t>(1);
  done(launch(executor::cuda::SortPairs{.n = n,
                                        .n_used = n_used,
                                        .n_rows = n_rows,
                                        .n_embd = n_embd,
                                        .panel_rows = panel_rows,
                                        .experts = device_experts.as<std::int32_t>(),
                                        .x = device_x.as<void>(),
                                        .positions = positions.as<std::int32_t>(),
                                        .sorted_pairs = sorted.as<std::int32_t>(),
                                        .sorted_experts = parts.as<std::int32_t>(),
                                        .sorted_x = sorted_x.as<void>(),
                                        .panels = panels.as<RowPanel>(),
                                        .n_panels = n_panels.as<std::int32_t>()},
              nullptr));
  std::vector<std::int32_t> order(pairs);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {},
                    [&](std::int32_t pair) { return std::pair(experts[static_cast<std::size_t>(pair)], pair); });
  Product plan = {QuantType::kBf16, 0, 0, n, panel_rows, std::vector<int>(static_cast<std::size_t>(n))};
  for (const std::int32_t e : experts) ++plan.rows[static_cast<std::size_t>(e)];
  const std::vector<RowPanel> expected = panels_of(plan);
  const int got_n = read<std::int32_t>(n_panels, 1)[0];
  int wrong = got_n == std::ssize(expected) && got_n <= most && read<std::int32_t>(sorted, pairs) == order ? 0 : 1;
  const auto got_panels = read<RowPanel>(panels, static_cast<std::size_t>(most));
  for (std::size_t i = 0; i < expected.size() && wrong == 0; ++i) {
    const RowPanel &a = got_panels[i], &b = expected[i];
    wrong += a.part == b.part && a.first == b.first && a.n == b.n ? 0 : 1;
  }
  const auto got_positions = read<std::int32_t>(positions, pairs), got_parts = read<std::int32_t>(parts, pairs);
  const auto got_x = read<std::uint16_t>(sorted_x, pairs * static_cast<std::size_t>(n_embd));
  for (int to = 0; to < n_pairs; ++to) {
    const int pair = order[static_cast<std::size_t>(to)];
    wrong += got_positions[static_cast<std::size_t>(pair)] == to ? 0 : 1;
    wrong += got_parts[static_cast<std::size_t>(to)] == experts[static_cast<std::size_t>(pair)] ? 0 : 1;
    wrong += std::equal(x.begin() + pair / n_used * n_embd, x.begin() + (pair / n_used + 1) * n_embd,
                        got_x.begin() + to * n_embd)
                 ? 0
                 : 1;
  }
  const std::string what =
      std::to_string(n_rows) + " rows, " + std::to_string(n_used) + " of " + std::to_string(n) + " experts";
  run.report("order of " + what + " in panels of " + std::to_string(panel_rows), wrong, 0.0);

  const bool biased = run.coin(), beside = run.coin();
  const std::vector<float> y = run.normals(n_pairs * n_embd), bias = run.normals(n * n_embd),
                           weights = run.normals(n_pairs), before = run.normals(n_rows * n_embd);
  const DeviceBytes device_y(y), device_bias(bias), device_weights(weights), out(before);
  done(launch(executor::cuda::SumExperts{.n = n_embd,
                                         .n_used = n_used,
                                         .n_rows = n_rows,
                                         .parts = device_y.as<float>(),
                                         .bias = biased ? device_bias.as<float>() : nullptr,
                                         .experts = device_experts.as<std::int32_t>(),
                                         .positions = positions.as<std::int32_t>(),
                                         .weights = device_weights.as<float>(),
                                         .beside = beside ? out.as<float>() : nullptr,
                                         .out = out.as<float>()},
              nullptr));
  const auto got = read<float>(out, before.size());
  double worst = 0.0;
  for (int row = 0; row < n_rows; ++row) {
    for (int i = 0; i < n_embd; ++i) {
      const auto at = static_cast<std::size_t>(row * n_embd + i);
      double sum = beside ? before[at] : 0.0;
      for (int pair = row * n_used; pair < (row + 1) * n_used; ++pair) {
        const auto p = static_cast<std::size_t>(pair);
        const auto to = static_cast<std::size_t>(std::ranges::find(order, pair) - order.begin());
        const double b = biased ? bias[static_cast<std::size_t>(experts[p] * n_embd + i)] : 0.0;
        sum += weights[p] * (y[to * static_cast<std::size_t>(n_embd) + static_cast<std::size_t>(i)] + b);
      }
      const double error = std::abs(got[at] - sum);
      worst = error <= worst ? worst : error;
    }
  }
  run.report("sum of " + what + (biased ? ", bias" : "") + (beside ? ", beside" : ""), worst, 1e-5);
}

int run(bool small) {
  Run run(test::test_seed());
  const Scratch scratch;
  for (int i = 0; i < (small ? 4 : 30); ++i) check_choice(run);
  for (int i = 0; i < (small ? 3 : 12); ++i) check_order(run);
  for (const QuantType type : {QuantType::kQ4K, QuantType::kQ8_0, QuantType::kQ6K, QuantType::kQ5K, QuantType::kQ4_0,
                               QuantType::kMxfp4, QuantType::kBf16}) {
    for (const int panel_rows : {1, 3, 8, 16, 16, 64, 64, 128}) {
      if (small && panel_rows > 64) continue;
      check_product(random_product(type, panel_rows, small, run), scratch, run);
    }
  }
  // More tiles than thread blocks, as large models have.
  for (const QuantType type : {QuantType::kQ4K, QuantType::kMxfp4, QuantType::kBf16}) {
    for (int i = 0; i < (small ? 0 : 3); ++i) {
      Product p = {type, 256, 384, 90 + run.up_to(60), 64, {}};
      for (int part = 0; part < p.n_parts; ++part) p.rows.push_back(run.up_to(75));
      check_product(p, scratch, run);
    }
  }
  std::printf("%d of %d failed\n", run.failed, run.n);
  return run.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  try {
    return coppice::run(argc > 1 && std::strcmp(argv[1], "--small") == 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
