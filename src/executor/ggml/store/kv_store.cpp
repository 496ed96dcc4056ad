#include "executor/ggml/store/kv_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/load_error.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kTensorAlignment = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

KvStore::KvStore(const KvStoreConfig& config, const Progress& progress) : config_(config) {
  const std::size_t blocks = config.budget_bytes / bytes_per_block();
  // Backends that copy rows out of the pool name their slots by 32 bits.
  const std::size_t most = std::numeric_limits<std::int32_t>::max() / static_cast<std::size_t>(config.block_size) - 64;
  num_blocks_ = static_cast<std::int32_t>(std::min(blocks, most));
  if (num_blocks_ < 2) {
    throw model::LoadError(fmt::format("a KV budget of {} bytes is too small: two blocks of {} tokens take {}",
                                       config.budget_bytes, config.block_size, 2 * bytes_per_block()));
  }
  const std::int32_t all_blocks = num_blocks_ + (kScratchRows + config.block_size - 1) / config.block_size;

  const auto n_tensors = static_cast<std::size_t>(2 * config.n_layer_slots);
  const std::size_t tensor_bytes = round_up(block_bytes() * static_cast<std::size_t>(all_blocks), kTensorAlignment);
  spdlog::info("taking {:.1f} MiB of memory for keys and values",
               static_cast<double>(n_tensors * tensor_bytes) / (1 << 20));
  memory_ = PoolMemory(n_tensors * tensor_bytes, config.n_threads, progress);
  buffer_.reset(ggml_backend_cpu_buffer_from_ptr(memory_.data(), memory_.size()));
  context_ = make_context(n_tensors);
  for (std::size_t i = 0; i < n_tensors; ++i) {
    const bool f16 = config.format == attention::KvFormat::kF16;
    ggml_tensor* t = ggml_new_tensor_2d(
        context_.get(), f16 ? GGML_TYPE_F16 : GGML_TYPE_I8,
        f16 ? std::int64_t{config.n_kv_head} * config.head_dim : static_cast<std::int64_t>(row_bytes()),
        std::int64_t{all_blocks} * config.block_size);
    ggml_backend_tensor_alloc(buffer_.get(), t, memory_.data() + i * tensor_bytes);
    (i % 2 == 0 ? k_ : v_).push_back(t);
  }
}

std::size_t KvStore::row_bytes() const {
  return attention::head_bytes(config_.format, config_.head_dim) * static_cast<std::size_t>(config_.n_kv_head);
}

std::size_t KvStore::block_bytes() const {
  return row_bytes() * static_cast<std::size_t>(config_.block_size);
}

void KvStore::copy(std::span<const kv::CopyOp> copies) {
  for (const kv::CopyOp& op : copies) {
    const std::size_t n = row_bytes() * static_cast<std::size_t>(op.n_slots);
    for (const auto& tensors : {std::cref(k_), std::cref(v_)}) {
      for (ggml_tensor* t : tensors.get()) {
        auto* base = static_cast<std::byte*>(t->data);
        std::memmove(base + static_cast<std::size_t>(op.dst) * block_bytes(),
                     base + static_cast<std::size_t>(op.src) * block_bytes(), n);
      }
    }
  }
}

}  // namespace coppice::executor
