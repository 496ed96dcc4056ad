// dense: the reference. softmax(Q K^T) V as two matrix products and a softmax, all in f32.
#include "executor/ggml/graph/sequence_attention.h"

namespace coppice::executor {

namespace {

class DenseAttention final : public SequenceAttention {
 public:
  using SequenceAttention::SequenceAttention;

  std::string_view name() const override { return "dense"; }
  /// ggml's operators where they know the format, so that ours are compared with others.
  bool own_nodes() const override { return config().store->layout().format != attention::KvFormat::kF16; }

 private:
  ggml_tensor* attend_sequence(ggml_context* c, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask,
                               ggml_tensor* sinks, const attention::HeadShape& heads) const override {
    ggml_tensor* queries = ggml_cont(c, ggml_permute(c, q, 0, 2, 1, 3));  // [head_dim, n_rows, n_head]
    ggml_tensor* keys = ggml_permute(c, k, 0, 2, 1, 3);                   // [head_dim, n_keys, n_kv_head]
    ggml_tensor* values = ggml_cont(c, ggml_permute(c, v, 1, 2, 0, 3));   // [n_keys, head_dim, n_kv_head]
    ggml_tensor* scores = ggml_mul_mat(c, keys, queries);                 // [n_keys, n_rows, n_head]
    float scale = heads.scale;
    if (const float cap = heads.softcap; cap > 0) {
      scores = ggml_scale(c, ggml_tanh(c, ggml_scale(c, scores, scale / cap)), cap);
      scale = 1;
    }
    ggml_tensor* weights = ggml_soft_max_ext(c, scores, mask, scale, 0.0F);
    ggml_soft_max_add_sinks(weights, sinks);
    ggml_tensor* out = ggml_mul_mat(c, values, weights);  // [head_dim, n_rows, n_head]
    return ggml_cont_2d(c, ggml_permute(c, out, 0, 2, 1, 3), q->ne[0] * q->ne[1], q->ne[2]);
  }
  int copies() const override { return 3; }  // values once more as columns
};

}  // namespace

std::unique_ptr<Attention> make_dense_attention(const AttentionConfig& config) {
  return std::make_unique<DenseAttention>(config);
}

}  // namespace coppice::executor
