// Products of rows sorted by part (experts) on the GPU against the weights read one by one in double precision; run
// twice, they must give the same bits. Prints a line a product; exits with 1 if an error is too large. --small: for
// compute-sanitizer. COPPICE_SEED=n replays a run.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "cuda/gpu_run.h"
#include "cuda/run_program.h"
#include "cuda/tile_weight.h"
#include "matmul/cuda/part_product.h"
#include "matmul/quant_weights.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using matmul::QuantType;
using matmul::cuda::RowPanel;
using test::DeviceBytes;
using test::finish;
using test::GpuRun;
using test::read;

struct Product {
  QuantType type;
  int n_in, n_out, n_parts, panel_rows;
  std::vector<int> rows;  ///< of each part

  int n_rows() const { return std::accumulate(rows.begin(), rows.end(), 0); }
  bool rounds_weights() const { return panel_rows > 16; }
};

/// Few, many or no rows a part, as experts have them.
Product random_product(QuantType type, int panel_rows, bool small, GpuRun& run) {
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

/// The largest error of a part's rows, relative to the sum of absolute terms, beyond what TileWeight leaves open.
double part_error(const Product& c, const test::QuantWeights& w, const std::vector<double>& x, int first, int n,
                  const std::vector<float>& y) {
  double worst = 0.0;
  const auto n_in = static_cast<std::size_t>(c.n_in);
  std::vector<double> values(n_in), sizes(n_in), slacks(n_in);
  for (int o = 0; o < c.n_out; ++o) {
    for (std::size_t i = 0; i < n_in; ++i) {
      const test::Weight& weight = w.weights[static_cast<std::size_t>(o) * n_in + i];
      const test::TileWeight of_tile(c.type, weight);
      values[i] = c.rounds_weights() ? of_tile.value : weight.scaled() + weight.offset();
      slacks[i] = c.rounds_weights() ? of_tile.slack : 0.0;
      sizes[i] = std::abs(weight.scaled()) + std::abs(weight.offset());
    }
    for (int row = first; row < first + n; ++row) {
      const double* v = x.data() + static_cast<std::size_t>(row) * n_in;
      double sum = 0.0, terms = 0.0, slack = 0.0;
      for (std::size_t i = 0; i < n_in; ++i) {
        sum += values[i] * v[i];
        terms += sizes[i] * std::abs(v[i]);
        slack += slacks[i] * std::abs(v[i]);
      }
      const double apart = std::abs(static_cast<double>(y[static_cast<std::size_t>(row * c.n_out + o)]) - sum);
      const double error = apart <= slack ? 0.0 : (apart - slack) / terms;
      worst = error <= worst ? worst : error;  // NaN stays
    }
  }
  return worst;
}

struct Scratch {
  DeviceBytes sums{matmul::cuda::product_scratch_sums(test::current_gpu()) * sizeof(float)};
  DeviceBytes flags{matmul::cuda::kProductFlags * sizeof(std::uint32_t)};
  Scratch() {
    sums.fill(0xff);
    flags.fill(0);
  }
};

void check_product(const Product& c, const Scratch& scratch, GpuRun& run) {
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
  std::vector<double> x_values;
  for (const std::uint16_t bits : x) x_values.push_back(test::from_number(Number::kBf16, bits));
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
    finish(matmul::cuda::launch_part_product({.type = c.type,
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
                                             test::current_gpu()));
    y.push_back(read<float>(out, static_cast<std::size_t>(c.n_rows() * c.n_out)));
  }
  double error = fits && std::memcmp(y[0].data(), y[1].data(), y[0].size() * sizeof(float)) == 0 ? 0.0 : INFINITY;
  int first = 0;
  for (int part = 0; part < c.n_parts; ++part) {
    const int n = c.rows[static_cast<std::size_t>(part)];
    const double of_part = part_error(c, weights[static_cast<std::size_t>(part)], x_values, first, n, y[0]);
    error = of_part <= error ? error : of_part;
    first += n;
  }
  // Only sums are rounded, to f32, and a tile's weights, which TileWeight knows.
  run.report("type " + std::to_string(static_cast<int>(c.type)) + ", " + std::to_string(c.n_in) + " -> " +
                 std::to_string(c.n_out) + ", " + std::to_string(c.n_rows()) + " rows of " + std::to_string(c.n_parts) +
                 " parts in panels of " + std::to_string(c.panel_rows),
             error, 2e-6);
}

int run(bool small) {
  GpuRun run(test::test_seed());
  const Scratch scratch;
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
  return run.end();
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
