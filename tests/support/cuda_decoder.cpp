#include "support/cuda_decoder.h"

#include <cuda_runtime_api.h>

#include <numeric>
#include <stdexcept>

namespace coppice::test {

namespace {

template <class T>
std::vector<T> read(const DeviceBytes& from, std::size_t n) {
  check_cuda(cudaDeviceSynchronize(), "step");
  std::vector<T> to(n);
  check_cuda(cudaMemcpy(to.data(), from.as<void>(), n * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return to;
}

}  // namespace

RowPlaces::RowPlaces(const AttentionCase& c) {
  for (const attention::SequenceRows& s : c.rows()) {
    for (int i = 0; i < s.n_rows; ++i) {
      positions.push_back(s.first_position + i);
      slots.push_back(static_cast<std::int32_t>(s.table.slot(positions.back())));
    }
  }
}

DecoderStepMemory::DecoderStepMemory(const LlamaShape& shape, const AttentionCase& c,
                                     const std::vector<std::int32_t>& tokens)
    : n_logits_(tokens.size() * static_cast<std::size_t>(shape.n_vocab)),
      n_rows_(tokens.size()),
      attention_(c, attention::cuda::Number::kBf16,
                 {.n_workers = current_gpu().n_multiprocessors(),
                  .n_kv_head = shape.n_kv_head,
                  .heads_per_kv = shape.n_head / shape.n_kv_head}) {
  const RowPlaces places(c);
  const auto of_row = [&](int n, std::size_t bytes) {
    return DeviceBytes(n_rows_ * static_cast<std::size_t>(n) * bytes);
  };
  tokens_ = DeviceBytes(tokens);
  positions_ = DeviceBytes(places.positions);
  slots_ = DeviceBytes(places.slots);
  residual_ = of_row(shape.n_embd, 4);
  product_ = of_row(executor::cuda::widest_product(shape.decoder()), 4);
  normed_ = of_row(shape.n_embd, 2);
  gated_ = of_row(shape.n_ff, 2);
  sums_ = DeviceBytes(matmul::cuda::product_scratch_sums(current_gpu()) * sizeof(float));
  flags_ = DeviceBytes(matmul::cuda::kProductFlags * sizeof(std::uint32_t));
  flags_.fill(0);
  logits_ = of_row(shape.n_vocab, 4);
  edited_ = of_row(shape.n_vocab, 4);
  std::vector<executor::cuda::SampleRow> greedy(n_rows_, {.temperature = 0.0F, .n_vocab = shape.n_vocab});
  for (std::size_t i = 0; i < n_rows_; ++i) greedy[i].logits = static_cast<std::int32_t>(i);
  specs_ = DeviceBytes(greedy);
  candidates_ = DeviceBytes(n_rows_ * executor::cuda::candidate_room(shape.n_vocab) * 8);
  drawn_ = of_row(1, 4);
  attention::cuda::TreeAttention attention = attention_.args();
  attention.block_bytes = std::int64_t{c.block_size} * shape.n_kv_head * shape.head_dim * 2;
  const auto n_rows = static_cast<int>(n_rows_);
  std::vector<std::int32_t> all_rows(n_rows_);
  std::iota(all_rows.begin(), all_rows.end(), 0);
  all_rows_ = DeviceBytes(all_rows);
  group_ = {slots_.as<std::int32_t>(), attention};
  step_ = {.n_rows = n_rows,
           .rows = tokens_.as<std::int32_t>(),
           .positions = positions_.as<std::int32_t>(),
           .groups = std::span(&group_, 1),
           .scratch = {.residual = residual_.as<float>(),
                       .product = product_.as<float>(),
                       .normed = normed_.as<void>(),
                       .gated = gated_.as<void>(),
                       .q = const_cast<void*>(attention.q),
                       .products = {sums_.as<float>(), flags_.as<std::uint32_t>()}}};
  sampling_ = {.n_rows = n_rows,
               .n_vocab = shape.n_vocab,
               .logits = logits_.as<float>(),
               .rows = specs_.as<executor::cuda::SampleRow>(),
               .edited = edited_.as<float>(),
               .candidates = candidates_.as<std::uint64_t>(),
               .tokens = drawn_.as<std::int32_t>()};
}

void DecoderStepMemory::launch(const executor::cuda::Decoder& decoder, const cuda::Gpu& gpu) const {
  const executor::cuda::OutputRows outputs = {step_.n_rows, all_rows_.as<std::int32_t>(), logits_.as<float>()};
  for (const char* error : {launch_layers(decoder, step_, gpu), launch_outputs(decoder, step_, outputs, gpu),
                            executor::cuda::launch(sampling_, gpu)}) {
    if (error != nullptr) throw std::runtime_error(error);
  }
}

void DecoderStepMemory::launch_prompt(const executor::cuda::Decoder& decoder, const cuda::Gpu& gpu) const {
  const executor::cuda::OutputRows last = {1, all_rows_.as<std::int32_t>() + step_.n_rows - 1, logits_.as<float>()};
  for (const char* error : {launch_layers(decoder, step_, gpu), launch_outputs(decoder, step_, last, gpu)}) {
    if (error != nullptr) throw std::runtime_error(error);
  }
}

std::vector<float> DecoderStepMemory::logits() const {
  return read<float>(logits_, n_logits_);
}

std::vector<std::int32_t> DecoderStepMemory::drawn() const {
  return read<std::int32_t>(drawn_, n_rows_);
}

}  // namespace coppice::test
