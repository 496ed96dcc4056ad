#include "executor/cuda/sample_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace coppice::executor::cuda {

namespace {

constexpr std::size_t kFirstBytes = std::size_t{1} << 20;

}  // namespace

SampleMemory::SampleMemory(int most_rows, int n_vocab) : n_vocab_(n_vocab) {
  const auto rows = static_cast<std::size_t>(most_rows);
  edited_ = DeviceMemory(rows * static_cast<std::size_t>(n_vocab) * sizeof(float), "sampling");
  candidates_ = DeviceMemory(rows * candidate_room(n_vocab) * sizeof(std::uint64_t), "sampling");
  drawn_ = DeviceMemory(rows * sizeof(std::int32_t), "sampling");
  make_room(kFirstBytes);
}

void SampleMemory::make_room(std::size_t bytes) {
  if (bytes <= staged_.size()) return;
  bytes = std::bit_ceil(bytes);
  lists_ = {};
  staged_ = {};
  lists_ = DeviceMemory(bytes, "penalties, biases and grammars");
  staged_ = PinnedMemory(bytes);
}

SampleRows SampleMemory::upload(std::span<const sampling::SamplerSpec> specs, std::span<const std::int32_t> logit_rows,
                                const float* logits, CUstream_st* stream) {
  rows_.clear();
  biases_.clear();
  counts_.clear();
  masks_.clear();
  const std::size_t mask_words = (static_cast<std::size_t>(n_vocab_) + 31) / 32;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const sampling::SamplerSpec& s = specs[i];
    rows_.push_back({.temperature = s.temperature,
                     .top_k = s.top_k,
                     .top_p = s.top_p,
                     .min_p = s.min_p,
                     .repeat = s.repeat,
                     .frequency = s.frequency,
                     .presence = s.presence,
                     .n_vocab = s.n_vocab,
                     .logits = logit_rows[i],
                     .first_bias = static_cast<std::int32_t>(biases_.size()),
                     .n_biases = static_cast<std::int32_t>(s.biases.size()),
                     .first_count = static_cast<std::int32_t>(counts_.size()),
                     .n_counts = static_cast<std::int32_t>(s.counts.size()),
                     .mask = s.mask.empty() ? -1 : static_cast<std::int32_t>(masks_.size() / mask_words),
                     .seed = s.seed,
                     .counter = s.counter});
    biases_.insert(biases_.end(), s.biases.begin(), s.biases.end());
    counts_.insert(counts_.end(), s.counts.begin(), s.counts.end());
    if (s.mask.empty()) continue;
    const auto n = static_cast<std::ptrdiff_t>(std::min(s.mask.size(), mask_words));
    masks_.insert(masks_.end(), s.mask.begin(), s.mask.begin() + n);
    masks_.resize((masks_.size() + mask_words - 1) / mask_words * mask_words);
  }
  const auto bytes_of = [](const auto& list) { return list.size() * sizeof(list[0]); };
  make_room(aligned(bytes_of(rows_)) + aligned(bytes_of(biases_)) + aligned(bytes_of(counts_)) + bytes_of(masks_));
  std::size_t end = 0;
  const auto stage = [&](const auto& list) {
    const std::size_t at = end;
    if (!list.empty()) std::memcpy(staged_.as<std::byte>(at), list.data(), bytes_of(list));
    end += aligned(bytes_of(list));
    return at;
  };
  const std::size_t rows = stage(rows_), biases = stage(biases_), counts = stage(counts_), masks = stage(masks_);
  check(cudaMemcpyAsync(lists_.as<void>(), staged_.as<void>(), std::min(end, staged_.size()), cudaMemcpyHostToDevice,
                        stream),
        "copying what to sample");
  return {.n_rows = static_cast<int>(rows_.size()),
          .n_vocab = n_vocab_,
          .logits = logits,
          .rows = lists_.as<SampleRow>(rows),
          .biases = lists_.as<sampling::TokenBias>(biases),
          .counts = lists_.as<sampling::TokenCount>(counts),
          .masks = lists_.as<std::int32_t>(masks),
          .edited = edited_.as<float>(),
          .candidates = candidates_.as<std::uint64_t>(),
          .tokens = drawn_.as<std::int32_t>()};
}

}  // namespace coppice::executor::cuda
