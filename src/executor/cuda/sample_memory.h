// SampleMemory: the GPU's memory for drawing tokens: specs with their lists, scratch, and the tokens. Lists have no
// largest size (a penalty counts a whole prompt), so their arrays grow. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/device_memory.h"
#include "executor/cuda/sampler.h"

namespace coppice::executor::cuda {

class SampleMemory {
 public:
  SampleMemory(int most_rows, int n_vocab);

  /// What to launch for these specs: row i draws from logits' row logit_rows[i]. The copies run on `stream`. Throws
  /// model::LoadError when the lists have no room. REQUIRES: what was uploaded before has been used; at most most_rows
  /// of them.
  SampleRows upload(std::span<const sampling::SamplerSpec> specs, std::span<const std::int32_t> logit_rows,
                    const float* logits, CUstream_st* stream);

  /// [most_rows], of the last launch.
  const std::int32_t* drawn() const { return drawn_.as<std::int32_t>(); }

 private:
  void make_room(std::size_t bytes);

  int n_vocab_;
  DeviceMemory edited_, candidates_, drawn_, lists_;
  PinnedMemory staged_;
  std::vector<SampleRow> rows_;
  std::vector<sampling::TokenBias> biases_;
  std::vector<sampling::TokenCount> counts_;
  std::vector<std::int32_t> masks_;
};

}  // namespace coppice::executor::cuda
