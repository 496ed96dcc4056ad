#include "support/cuda_step.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "attention/cuda/block_order.h"

namespace coppice::test {

using attention::cuda::Number;

namespace {

attention::cuda::TreeLimits roomy(const AttentionCase& c) {
  std::int64_t longest = 1;
  for (const CaseSequence& s : c.sequences) longest = std::max(longest, s.length());
  attention::cuda::TreeLimits limits =
      attention::cuda::worst_case(c.n_rows(), static_cast<int>(c.sequences.size()), static_cast<int>(longest));
  for (int* n : {&limits.items, &limits.item_rows, &limits.slots}) *n = *n * 4 + 64;  // short chunks are wanted, too
  return limits;
}

float half_value(std::uint16_t bits) {
  return static_cast<float>(std::bit_cast<_Float16>(bits));
}

}  // namespace

void check_cuda(int status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(static_cast<cudaError_t>(status)));
}

cuda::Gpu current_gpu(CUstream_st* stream) {
  int number = 0;
  check_cuda(cudaGetDevice(&number), "device");
  return cuda::Gpu(number, stream);
}

DeviceBytes::DeviceBytes(std::size_t n) : n_(std::max<std::size_t>(n, 16)) {
  void* p = nullptr;
  check_cuda(cudaMalloc(&p, n_), "cudaMalloc");
  bytes_.reset(static_cast<std::byte*>(p));
}
void DeviceBytes::write(const void* from, std::size_t n) {
  if (n > 0) check_cuda(cudaMemcpy(bytes_.get(), from, n, cudaMemcpyHostToDevice), "cudaMemcpy");
}
void DeviceBytes::fill(int byte) const {
  check_cuda(cudaMemset(bytes_.get(), byte, n_), "cudaMemset");
}
void DeviceBytes::Free::operator()(std::byte* p) const {
  cudaFree(p);
}

std::uint16_t both_hold(std::uint16_t half) {
  return half & 0xfff8;
}

std::uint16_t to_number(Number number, float x) {
  if (number == Number::kF16) return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

float from_number(Number number, std::uint16_t bits) {
  if (number == Number::kF16) return half_value(bits);
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::vector<std::uint16_t> in_block_order(const AttentionCase& c, std::span<const std::byte> half_pool, Number number) {
  const int heads = c.heads.n_kv_head, dim = c.heads.head_dim, bs = c.block_size;
  const std::size_t of_head = static_cast<std::size_t>(bs * dim), of_block = of_head * static_cast<std::size_t>(heads);
  std::vector<std::uint16_t> out(of_block * static_cast<std::size_t>(c.n_blocks));
  const std::byte* from = half_pool.data();
  for (int block = 0; block < c.n_blocks; ++block) {
    for (int slot = 0; slot < bs; ++slot) {
      for (int h = 0; h < heads; ++h) {
        for (int d = 0; d < dim; ++d, from += 2) {
          std::uint16_t bits = 0;
          std::memcpy(&bits, from, 2);
          out[static_cast<std::size_t>(block) * of_block + static_cast<std::size_t>(h) * of_head +
              attention::cuda::offset_in_head(dim, bs, slot, d) / 2] = to_number(number, half_value(bits));
        }
      }
    }
  }
  return out;
}

std::vector<std::byte> in_byte_order(const AttentionCase& c, std::span<std::byte> half_pool) {
  const auto heads = static_cast<std::size_t>(c.heads.n_kv_head), dim = static_cast<std::size_t>(c.heads.head_dim);
  const auto bs = static_cast<std::size_t>(c.block_size);
  const std::size_t of_head = attention::cuda::byte_head_bytes(c.heads.head_dim, c.block_size);
  std::vector<std::byte> out(static_cast<std::size_t>(c.n_blocks) * heads * of_head);
  std::byte* from = half_pool.data();
  for (std::size_t slot = 0; slot < static_cast<std::size_t>(c.n_blocks) * bs; ++slot) {
    for (std::size_t h = 0; h < heads; ++h, from += 2 * dim) {
      std::byte* to = out.data() + (slot / bs * heads + h) * of_head;
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof bits);
      const float first = half_value(bits);  // a slot that no one sees has the same everywhere: NaN, or very much
      const bool seen = std::abs(first) < 100.0F;
      auto scale =
          static_cast<_Float16>(seen ? std::ldexp(1.0F, -4 - static_cast<int>((slot + h) % 3)) : first / 127.0F);
      for (std::size_t d = 0; d < dim; ++d) {
        std::memcpy(&bits, from + 2 * d, sizeof bits);
        const float rounded =
            seen ? std::clamp(std::nearbyint(half_value(bits) / static_cast<float>(scale)), -127.0F, 127.0F) : 127.0F;
        to[slot % bs * dim + d] = static_cast<std::byte>(static_cast<std::int8_t>(rounded));
        const auto stands_for = static_cast<_Float16>(rounded * static_cast<float>(scale));
        if (seen) std::memcpy(from + 2 * d, &stands_for, sizeof stands_for);
      }
      std::memcpy(to + bs * dim + slot % bs * 2, &scale, sizeof scale);
    }
  }
  return out;
}

CudaStep::CudaStep(const AttentionCase& c, Number number, const attention::cuda::TreeCost& cost, int room)
    : heads_(c.heads), number_(number), cost_(cost) {
  const attention::cuda::TreeLimits limits =
      room > 0 ? attention::cuda::TreeLimits{.items = room, .item_rows = room, .slots = room, .merge_rows = room}
               : roomy(c);
  planner_ = std::make_unique<attention::cuda::TreePlanner>(limits, cost);
  const std::vector<attention::SequenceRows> rows = c.rows();
  attention::SharePlanner sharing(c.group);
  plan_ = planner_->plan(sharing.plan(rows));
  if (plan_ == nullptr) throw std::runtime_error("the plan does not fit");
  const auto at_least = [&](std::size_t n) { return std::max(n, static_cast<std::size_t>(room)); };
  const auto n_head = static_cast<std::size_t>(heads_.n_head), dim = static_cast<std::size_t>(heads_.head_dim);
  const std::size_t n_slots = at_least(static_cast<std::size_t>(plan_->n_slots));
  counts_ = DeviceBytes(sizeof(attention::cuda::TreeCounts));
  items_ = DeviceBytes((at_least(plan_->items.size()) + 256) *
                       sizeof(attention::cuda::Item));  // 256: the launch reads ahead
  items_.fill(0);
  rows_ = DeviceBytes(at_least(plan_->rows.size()) * sizeof(attention::cuda::ItemRow));
  merge_rows_ = DeviceBytes(at_least(plan_->merge_rows.size()) * sizeof(attention::cuda::MergeRow));
  sums_ = DeviceBytes(n_slots * n_head * dim * sizeof(float));
  states_ = DeviceBytes(n_slots * n_head * 2 * sizeof(float));
  sums_.fill(0xff);
  states_.fill(0xff);
  control_ = DeviceBytes(attention::cuda::kControlWords * sizeof(std::uint32_t));
  control_.fill(0);
  const std::size_t n_q = at_least(static_cast<std::size_t>(c.n_rows())) * n_head * dim;
  q_ = DeviceBytes(n_q * 2);
  out_ = DeviceBytes(n_q * 2);
  put(c);
}

void CudaStep::put(const AttentionCase& c) {
  const std::vector<attention::SequenceRows> rows = c.rows();
  attention::SharePlanner sharing(c.group);
  plan_ = planner_->plan(sharing.plan(rows));
  if (plan_ == nullptr) throw std::runtime_error("the plan does not fit");
  const attention::cuda::TreeCounts counts = {plan_->n_items, static_cast<std::int32_t>(plan_->merge_rows.size())};
  counts_.write(&counts, sizeof counts);
  items_.write(plan_->items.data(), plan_->items.size() * sizeof(attention::cuda::Item));
  rows_.write(plan_->rows.data(), plan_->rows.size() * sizeof(attention::cuda::ItemRow));
  merge_rows_.write(plan_->merge_rows.data(), plan_->merge_rows.size() * sizeof(attention::cuda::MergeRow));
  n_out_ = static_cast<std::size_t>(c.n_rows()) * static_cast<std::size_t>(heads_.n_head * heads_.head_dim);
}

attention::cuda::TreeAttention CudaStep::args() const {
  return {.number = number_,
          .head_dim = heads_.head_dim,
          .n_head = heads_.n_head,
          .n_kv_head = heads_.n_kv_head,
          .scale = heads_.scale,
          .q = q_.as<void>(),
          .out = out_.as<void>(),
          .counts = counts_.as<attention::cuda::TreeCounts>(),
          .items = items_.as<attention::cuda::Item>(),
          .rows = rows_.as<attention::cuda::ItemRow>(),
          .merge_rows = merge_rows_.as<attention::cuda::MergeRow>(),
          .scratch = {sums_.as<float>(), states_.as<float>(), control_.as<std::uint32_t>()}};
}

void CudaStep::write_queries(std::span<const float> q) {
  std::vector<std::uint16_t> bits;
  for (const float x : q) bits.push_back(to_number(number_, x));
  q_.write(bits.data(), bits.size() * 2);
}

std::vector<std::uint16_t> CudaStep::out() const {
  check_cuda(cudaDeviceSynchronize(), "attention");
  std::vector<std::uint16_t> bits(n_out_);
  check_cuda(cudaMemcpy(bits.data(), out_.as<void>(), n_out_ * 2, cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bits;
}

}  // namespace coppice::test
