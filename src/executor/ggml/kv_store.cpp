#include "executor/ggml/kv_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/cpu/kv_codec.h"
#include "attention/cpu/new_rows.h"
#include "model/gguf_file.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kTensorAlignment = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

/// Sources: those of NewRows in their order, the pool of keys, the pool of values.
void run_enter(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& config = *static_cast<const KvStoreConfig*>(userdata);
  const auto data = [&](int i) { return dst->src[i]->data; };
  attention::enter_rows({.format = config.format,
                         .n_head = static_cast<int>(dst->ne[0]) / config.head_dim,
                         .n_kv_head = config.n_kv_head,
                         .head_dim = config.head_dim,
                         .n = static_cast<int>(dst->ne[1]),
                         .queries = static_cast<float*>(dst->data),
                         .keys = static_cast<float*>(data(1)),
                         .values = static_cast<const float*>(data(2)),
                         .turns = static_cast<const float*>(data(3)),
                         .turned_dims = static_cast<int>(dst->src[3]->ne[0]) / 2,
                         .slots = static_cast<const kv::Slot*>(data(4)),
                         .key_pool = static_cast<std::byte*>(data(5)),
                         .value_pool = static_cast<std::byte*>(data(6)),
                         .row_bytes = dst->src[5]->nb[1]},
                        worker, n_workers);
}

/// Sources: the pool, ids.
void run_read(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& config = *static_cast<const KvStoreConfig*>(userdata);
  const ggml_tensor* pool = dst->src[0];
  const auto* ids = static_cast<const std::int32_t*>(dst->src[1]->data);
  const std::size_t bytes = attention::head_bytes(config.format, config.head_dim);
  const std::int64_t n = dst->ne[1] * config.n_kv_head;
  for (std::int64_t i = n * worker / n_workers; i < n * (worker + 1) / n_workers; ++i) {
    const std::int64_t row = i / config.n_kv_head, head = i % config.n_kv_head;
    attention::decode_head(config.format, config.head_dim,
                           static_cast<const std::byte*>(pool->data) +
                               static_cast<std::size_t>(ids[row]) * pool->nb[1] +
                               static_cast<std::size_t>(head) * bytes,
                           static_cast<float*>(dst->data) + row * dst->ne[0] + head * config.head_dim);
  }
}

}  // namespace

KvStore::KvStore(const KvStoreConfig& config, const Progress& progress) : config_(config) {
  const std::size_t blocks = config.budget_bytes / bytes_per_block();
  // Slots are gathered by 32-bit row numbers.
  const std::size_t most = std::numeric_limits<std::int32_t>::max() / static_cast<std::size_t>(config.block_size) - 64;
  num_blocks_ = static_cast<std::int32_t>(std::min(blocks, most));
  if (num_blocks_ < 2) {
    throw model::LoadError(fmt::format("a KV budget of {} bytes is too small: two blocks of {} tokens take {}",
                                       config.budget_bytes, config.block_size, 2 * bytes_per_block()));
  }
  all_blocks_ = num_blocks_ + (kScratchRows + config.block_size - 1) / config.block_size;

  const auto n_tensors = static_cast<std::size_t>(2 * config.n_layer_slots);
  const std::size_t tensor_bytes = round_up(block_bytes() * static_cast<std::size_t>(all_blocks_), kTensorAlignment);
  spdlog::info("taking {:.1f} MiB of memory for keys and values",
               static_cast<double>(n_tensors * tensor_bytes) / (1 << 20));
  memory_ = PoolMemory(n_tensors * tensor_bytes, config.n_threads, progress);
  buffer_.reset(ggml_backend_cpu_buffer_from_ptr(memory_.data(), memory_.size()));
  context_ = make_context(n_tensors);
  for (std::size_t i = 0; i < n_tensors; ++i) {
    const bool f16 = config.format == attention::KvFormat::kF16;
    ggml_tensor* t = ggml_new_tensor_2d(context_.get(), f16 ? GGML_TYPE_F16 : GGML_TYPE_I8,
                                        f16 ? n_embd_kv() : static_cast<std::int64_t>(row_bytes()),
                                        std::int64_t{all_blocks_} * config.block_size);
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

EnteredRows KvStore::enter_rows(ggml_context* context, int layer_slot, const NewRows& rows) const {
  ggml_tensor* q = rows.q;
  ggml_tensor* others[] = {rows.k, rows.v, rows.turns, rows.slots, k(layer_slot), v(layer_slot)};
  q = ggml_custom_inplace(context, q, others, std::size(others), run_enter, GGML_N_TASKS_MAX,
                          const_cast<KvStoreConfig*>(&config_));
  q = ggml_reshape_3d(context, q, config_.head_dim, q->ne[0] / config_.head_dim, q->ne[1]);
  return {q, k(layer_slot), v(layer_slot)};
}

ggml_tensor* KvStore::read_rows(ggml_context* context, ggml_tensor* pool, ggml_tensor* ids) const {
  if (config_.format == attention::KvFormat::kF16) return ggml_get_rows(context, pool, ids);
  ggml_tensor* sources[] = {pool, ids};
  return ggml_custom_4d(context, GGML_TYPE_F32, n_embd_kv(), ids->ne[0], 1, 1, sources, 2, run_read, GGML_N_TASKS_MAX,
                        const_cast<KvStoreConfig*>(&config_));
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
