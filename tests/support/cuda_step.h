// A step's attention on the GPU, for the GPU's test and benchmark: pool, plan, queries and output in device memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/cuda/tree_attention.h"
#include "cuda/gpu.h"
#include "support/attention_cases.h"

namespace coppice::test {

/// Throws std::runtime_error with CUDA's words if `status` (a cudaError_t) is an error.
void check_cuda(int status, const char* what);

/// The GPU that is current on this thread.
cuda::Gpu current_gpu(CUstream_st* stream = nullptr);

/// Owns device memory; not copied.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  explicit DeviceBytes(std::size_t n);
  template <class V>
  explicit DeviceBytes(const std::vector<V>& values) : DeviceBytes(values.size() * sizeof(V)) {
    write(values.data(), values.size() * sizeof(V));
  }
  void write(const void* from, std::size_t n);
  void fill(int byte) const;
  template <class V>
  V* as() const {
    return reinterpret_cast<V*>(bytes_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::size_t n_ = 0;
};

/// Numbers that bf16 and f16 both hold: f16 values without their last three bits. The tests' pools and queries are made
/// of such.
std::uint16_t both_hold(std::uint16_t half);
/// The bits of such a number in a kernel's format, and back.
std::uint16_t to_number(attention::cuda::Number number, float x);
float from_number(attention::cuda::Number number, std::uint16_t bits);

/// [n_blocks] in block_order.h's order from the reference's f16 pool, whose values both formats hold.
std::vector<std::uint16_t> in_block_order(const AttentionCase& c, std::span<const std::byte> half_pool,
                                          attention::cuda::Number number);

/// [n_blocks] signed bytes with scales in block_order.h's order. The f16 pool's values become what the bytes stand for.
std::vector<std::byte> in_byte_order(const AttentionCase& c, std::span<std::byte> half_pool);

/// The plan of a case and its arguments, all on the device. The pool is the caller's.
class CudaStep {
 public:
  /// room: arrays that hold any case of so many rows and items, of the same heads, that is put there later; 0: just
  /// this one.
  CudaStep(const AttentionCase& c, attention::cuda::Number number, const attention::cuda::TreeCost& cost, int room = 0);

  /// Another case's plan and number of rows, in the same arrays. Throws std::runtime_error if it does not fit.
  void put(const AttentionCase& c);

  const attention::cuda::TreePlan& plan() const { return *plan_; }
  /// With the pool's pointers and block_bytes left to fill in.
  attention::cuda::TreeAttention args() const;
  void write_queries(std::span<const float> q);
  std::vector<std::uint16_t> out() const;  ///< [n_rows][n_head][head_dim], after the device is through
  void poison_out() { out_.fill(0xff); }   ///< NaN

 private:
  attention::HeadShape heads_;
  attention::cuda::Number number_;
  attention::cuda::TreeCost cost_;
  std::size_t n_out_ = 0;
  std::unique_ptr<attention::cuda::TreePlanner> planner_;
  const attention::cuda::TreePlan* plan_ = nullptr;
  DeviceBytes counts_, items_, rows_, merge_rows_, sums_, states_, control_, q_, out_;
};

}  // namespace coppice::test
