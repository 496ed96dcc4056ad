#include "executor/ggml/graph/read_rows.h"

#include "attention/cpu/kv_codec.h"

namespace coppice::executor {

namespace {

/// Sources: the pool, ids. userdata: the store's config.
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

ggml_tensor* read_rows(GraphBuilder& b, ggml_tensor* pool, ggml_tensor* ids) {
  const KvStoreConfig& config = b.parts.store->config();
  const std::int64_t n_ids = ids->ne[0];
  ggml_tensor* rows;
  if (config.format == attention::KvFormat::kF16) {
    rows = ggml_get_rows(b.context, pool, ids);
  } else {
    ggml_tensor* sources[] = {pool, ids};
    rows = ggml_custom_4d(b.context, GGML_TYPE_F32, std::int64_t{config.n_kv_head} * config.head_dim, n_ids, 1, 1,
                          sources, 2, run_read, GGML_N_TASKS_MAX, const_cast<KvStoreConfig*>(&config));
  }
  return ggml_reshape_3d(b.context, rows, config.head_dim, config.n_kv_head, n_ids);
}

}  // namespace coppice::executor
