#include "executor/ggml/graph/read_rows.h"

#include "attention/cpu/kv_codec.h"

namespace coppice::executor {

namespace {

struct ReadNode {
  attention::KvFormat format;
  int head_dim;
};

/// Sources: the pool, ids.
void run_read(ggml_tensor* dst, int worker, int n_workers, void* userdata) {
  const auto& node = *static_cast<const ReadNode*>(userdata);
  const ggml_tensor* pool = dst->src[0];
  const auto* ids = static_cast<const std::int32_t*>(dst->src[1]->data);
  const std::size_t bytes = attention::head_bytes(node.format, node.head_dim);
  const std::int64_t n_heads = dst->ne[0] / node.head_dim, n = dst->ne[1] * n_heads;
  for (std::int64_t i = n * worker / n_workers; i < n * (worker + 1) / n_workers; ++i) {
    const std::int64_t row = i / n_heads, head = i % n_heads;
    attention::decode_head(node.format, node.head_dim,
                           static_cast<const std::byte*>(pool->data) +
                               static_cast<std::size_t>(ids[row]) * pool->nb[1] +
                               static_cast<std::size_t>(head) * bytes,
                           static_cast<float*>(dst->data) + row * dst->ne[0] + head * node.head_dim);
  }
}

}  // namespace

ggml_tensor* read_rows(GraphBuilder& b, ggml_tensor* pool, ggml_tensor* ids, int head_dim) {
  const attention::KvFormat format = b.parts.store->layout().format;
  const std::int64_t n_ids = ids->ne[0];
  const auto n_heads =
      static_cast<std::int64_t>(ggml_row_size(pool->type, pool->ne[0]) / attention::head_bytes(format, head_dim));
  ggml_tensor* rows;
  if (format == attention::KvFormat::kF16) {
    rows = ggml_get_rows(b.context, pool, ids);
  } else {
    ggml_tensor* sources[] = {pool, ids};
    rows = ggml_custom_4d(b.context, GGML_TYPE_F32, n_heads * head_dim, n_ids, 1, 1, sources, 2, run_read,
                          GGML_N_TASKS_MAX, &b.keep<ReadNode>(ReadNode{format, head_dim}));
  }
  return ggml_reshape_3d(b.context, rows, head_dim, n_heads, n_ids);
}

}  // namespace coppice::executor
