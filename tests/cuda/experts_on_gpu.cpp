// Experts on the GPU, but for their products: choice, order and sum, against the plain thing. Prints a line a case;
// exits with 1 if an error is too large. --small: for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "cuda/gpu_run.h"
#include "cuda/run_program.h"
#include "executor/cuda/expert_operators.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using executor::cuda::ExpertWeights;
using matmul::cuda::RowPanel;
using test::DeviceBytes;
using test::finish;
using test::GpuRun;
using test::poisoned;
using test::read;

struct Choice {
  executor::cuda::ExpertsShape shape;
  int n_rows;
  std::vector<float> scores, bias, selection_bias, scales;  ///< the last three: empty where there is none
  int n_embd = 0;
  std::vector<std::uint16_t> x;
  std::vector<float> beside_gate;  ///< likewise
};

Choice random_choice(GpuRun& run) {
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
  c.n_embd = 64 * run.up_to(40);
  for (const float x : run.normals(c.n_rows * c.n_embd)) c.x.push_back(test::to_number(Number::kBf16, x));
  if (run.coin()) c.beside_gate = run.normals(c.n_embd, 2.0F / std::sqrt(static_cast<float>(c.n_embd)));
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

/// The weight of what is beside a row's experts.
double weight_beside(const Choice& c, int row) {
  double sum = 0.0;
  for (int i = 0; i < c.n_embd; ++i) {
    const std::uint16_t x = c.x[static_cast<std::size_t>(row * c.n_embd + i)];
    sum += static_cast<double>(test::from_number(Number::kBf16, x)) * c.beside_gate[static_cast<std::size_t>(i)];
  }
  return 1.0 / (1.0 + std::exp(-sum));
}

void check_choice(GpuRun& run) {
  const Choice c = random_choice(run);
  const auto n_pairs = static_cast<std::size_t>(c.n_rows * c.shape.n_used);
  const DeviceBytes scores(c.scores), bias = or_none(c.bias), selection = or_none(c.selection_bias),
                                      scales = or_none(c.scales), x(c.x), gate = or_none(c.beside_gate),
                                      beside = poisoned<float>(static_cast<std::size_t>(c.n_rows)),
                                      experts = poisoned<std::int32_t>(n_pairs), weights = poisoned<float>(n_pairs);
  finish(launch(executor::cuda::ChooseExperts{.shape = c.shape,
                                              .n_rows = c.n_rows,
                                              .scores = scores.as<float>(),
                                              .bias = bias.as<float>(),
                                              .selection_bias = selection.as<float>(),
                                              .scales = scales.as<float>(),
                                              .experts = experts.as<std::int32_t>(),
                                              .weights = weights.as<float>(),
                                              .n_embd = c.n_embd,
                                              .x = x.as<void>(),
                                              .beside_gate = gate.as<float>(),
                                              .beside_weights = beside.as<float>()},
                test::current_gpu()));
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
  if (c.beside_gate.empty()) return;
  double worst_beside = 0.0;
  const auto got_beside = read<float>(beside, static_cast<std::size_t>(c.n_rows));
  for (int row = 0; row < c.n_rows; ++row) {
    const double error = std::abs(got_beside[static_cast<std::size_t>(row)] - weight_beside(c, row));
    worst_beside = error <= worst_beside ? worst_beside : error;
  }
  run.report("the weight beside them, of " + std::to_string(c.n_embd), worst_beside, 2e-6);
}

/// Of pairs sorted by expert.
std::vector<RowPanel> panels_of(const std::vector<std::int32_t>& experts, int n, int panel_rows) {
  std::vector<RowPanel> panels;
  int first = 0;
  for (int expert = 0; expert < n; ++expert) {
    const int end = first + static_cast<int>(std::ranges::count(experts, expert));
    for (; first < end; first += std::min(panel_rows, end - first))
      panels.push_back({expert, first, std::min(panel_rows, end - first)});
  }
  return panels;
}

/// Rows through the order and back: what each pair brings is its row, and the sum is the plain one.
void check_order(GpuRun& run) {
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
  const bool apart = run.coin();  // rows are brought by a launch of their own
  const DeviceBytes device_experts(experts), device_x(x),
      positions = poisoned<std::int32_t>(pairs), sorted = poisoned<std::int32_t>(pairs),
      parts = poisoned<std::int32_t>(pairs),
      sorted_x = poisoned<std::uint16_t>(pairs * static_cast<std::size_t>(n_embd)),
      panels = poisoned<RowPanel>(static_cast<std::size_t>(most)), n_panels = poisoned<std::int32_t>(1);
  finish(launch(executor::cuda::SortPairs{.n = n,
                                          .n_used = n_used,
                                          .n_rows = n_rows,
                                          .n_embd = n_embd,
                                          .panel_rows = panel_rows,
                                          .experts = device_experts.as<std::int32_t>(),
                                          .x = device_x.as<void>(),
                                          .positions = positions.as<std::int32_t>(),
                                          .sorted_pairs = sorted.as<std::int32_t>(),
                                          .sorted_experts = parts.as<std::int32_t>(),
                                          .sorted_x = apart ? nullptr : sorted_x.as<void>(),
                                          .panels = panels.as<RowPanel>(),
                                          .n_panels = n_panels.as<std::int32_t>()},
                test::current_gpu()));
  if (apart) {
    finish(launch(executor::cuda::BringRows{.n_used = n_used,
                                            .n_rows = n_rows,
                                            .n_embd = n_embd,
                                            .sorted_pairs = sorted.as<std::int32_t>(),
                                            .x = device_x.as<void>(),
                                            .sorted_x = sorted_x.as<void>()},
                  test::current_gpu()));
  }
  std::vector<std::int32_t> order(pairs);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {},
                    [&](std::int32_t pair) { return std::pair(experts[static_cast<std::size_t>(pair)], pair); });
  const std::vector<RowPanel> expected = panels_of(experts, n, panel_rows);
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

  const bool biased = run.coin(), beside = run.coin(), weighted = run.up_to(4) > 1, beside_weighted = run.coin();
  const std::vector<float> y = run.normals(n_pairs * n_embd), bias = run.normals(n * n_embd),
                           weights = run.normals(n_pairs), before = run.normals(n_rows * n_embd),
                           before_weights = run.normals(n_rows);
  const DeviceBytes device_y(y), device_bias(bias), device_weights(weights), device_before_weights(before_weights),
      out(before);
  finish(
      launch(executor::cuda::SumExperts{.n = n_embd,
                                        .n_used = n_used,
                                        .n_rows = n_rows,
                                        .parts = device_y.as<float>(),
                                        .bias = biased ? device_bias.as<float>() : nullptr,
                                        .experts = device_experts.as<std::int32_t>(),
                                        .positions = positions.as<std::int32_t>(),
                                        .weights = weighted ? device_weights.as<float>() : nullptr,
                                        .beside = beside ? out.as<float>() : nullptr,
                                        .beside_weights = beside_weighted ? device_before_weights.as<float>() : nullptr,
                                        .out = out.as<float>()},
             test::current_gpu()));
  const auto got = read<float>(out, before.size());
  double worst = 0.0;
  for (int row = 0; row < n_rows; ++row) {
    for (int i = 0; i < n_embd; ++i) {
      const auto at = static_cast<std::size_t>(row * n_embd + i);
      double sum = beside ? before[at] : 0.0;
      if (beside_weighted) sum *= before_weights[static_cast<std::size_t>(row)];
      for (int pair = row * n_used; pair < (row + 1) * n_used; ++pair) {
        const auto p = static_cast<std::size_t>(pair);
        const auto to = static_cast<std::size_t>(std::ranges::find(order, pair) - order.begin());
        const double b = biased ? bias[static_cast<std::size_t>(experts[p] * n_embd + i)] : 0.0;
        sum += (weighted ? weights[p] : 1.0) *
               (y[to * static_cast<std::size_t>(n_embd) + static_cast<std::size_t>(i)] + b);
      }
      const double error = std::abs(got[at] - sum);
      worst = error <= worst ? worst : error;
    }
  }
  run.report("sum of " + what + (biased ? ", bias" : "") + (beside ? ", beside" : "") +
                 (beside && beside_weighted ? ", weighted" : ""),
             worst, 1e-5);
}

int run(bool small) {
  GpuRun run(test::test_seed());
  for (int i = 0; i < (small ? 4 : 30); ++i) check_choice(run);
  for (int i = 0; i < (small ? 3 : 12); ++i) check_order(run);
  return run.end();
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
