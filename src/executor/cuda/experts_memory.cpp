#include "executor/cuda/experts_memory.h"

namespace coppice::executor::cuda {

namespace {

constexpr std::size_t kArrays = 6;  ///< of a number for each pair: ExpertsScratch's first ones

}  // namespace

ExpertsMemory::ExpertsMemory(const ExpertsShape& shape, int n_embd, int max_rows)
    : n_pairs_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(shape.n_used)) {
  if (n_pairs_ == 0) return;
  const auto of_pair = [&](int numbers, std::size_t bytes_each) {
    return DeviceMemory(n_pairs_ * static_cast<std::size_t>(numbers) * bytes_each, "experts of a step");
  };
  n_pairs_ = (n_pairs_ + 3) / 4 * 4;  // so that each array is aligned
  choice_ = of_pair(kArrays, 4);
  panels_ = DeviceMemory((n_pairs_ + 1) * sizeof(matmul::cuda::RowPanel), "experts of a step");
  x_ = of_pair(n_embd, 2);
  product_ = of_pair(widest_expert_product(shape, n_embd), 4);
  gated_ = of_pair(shape.n_ff, 2);
}

ExpertsScratch ExpertsMemory::scratch() const {
  if (n_pairs_ == 0) return {};
  const auto array = [&](std::size_t i) { return choice_.as<std::int32_t>() + i * n_pairs_; };
  auto* panels = panels_.as<matmul::cuda::RowPanel>();
  return {.experts = array(0),
          .positions = array(1),
          .sorted_pairs = array(2),
          .sorted_experts = array(3),
          .weights = reinterpret_cast<float*>(array(4)),
          .beside_weights = reinterpret_cast<float*>(array(5)),
          .panels = panels,
          .n_panels = reinterpret_cast<std::int32_t*>(panels + n_pairs_),
          .x = x_.as<void>(),
          .product = product_.as<float>(),
          .gated = gated_.as<void>()};
}

}  // namespace coppice::executor::cuda
