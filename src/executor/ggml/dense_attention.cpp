// dense: the reference. Each sequence alone, its keys and values gathered to f32, attention by matmul, softmax, matmul.
#include <algorithm>
#include <cmath>

#include "executor/ggml/attention.h"

namespace coppice::executor {

namespace {

class DenseAttention final : public Attention {
 public:
  explicit DenseAttention(const AttentionConfig& config) : config_(config) {}

  std::string_view name() const override { return "dense"; }
  PlanPolicy policy() const override { return {.share = false, .pad = false}; }
  /// So that rope and writes, too, are compared with others than ours.
  bool portable() const override { return config_.store->format() == attention::KvFormat::kF16; }
  bool in_place(const Unit&, const UnitShape&) const override { return false; }

  UnitInputs declare(ggml_context* context, const UnitKey& unit, std::size_t group) const override {
    const int keys = unit.shape.keys[group];
    UnitInputs in;
    in.ids = ggml_new_tensor_1d(context, GGML_TYPE_I32, keys);
    in.mask = ggml_new_tensor_2d(context, GGML_TYPE_F32, keys, unit.shape.n_rows);
    return in;
  }

  ggml_tensor* build(ggml_context* c, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, const UnitKey& unit,
                     std::size_t group, UnitInputs& in) const override {
    const auto& spec = *config_.spec;
    const int keys = unit.shape.keys[group];
    const auto heads = [&](ggml_tensor* pool) {  // [n_embd_kv, keys] f32 -> [head_dim, n_kv_head, keys]
      return ggml_reshape_3d(c, config_.store->read_rows(c, pool, in.ids), spec.head_dim, spec.n_kv_head, keys);
    };
    ggml_tensor* k_rows = ggml_permute(c, heads(k), 0, 2, 1, 3);                // [head_dim, keys, n_kv_head]
    ggml_tensor* v_cols = ggml_cont(c, ggml_permute(c, heads(v), 1, 2, 0, 3));  // [keys, head_dim, n_kv_head]
    ggml_tensor* q_rows = ggml_cont(c, ggml_permute(c, q, 0, 2, 1, 3));         // [head_dim, n_rows, n_head]
    ggml_tensor* scores = ggml_mul_mat(c, k_rows, q_rows);                      // [keys, n_rows, n_head]
    ggml_tensor* weights = ggml_soft_max_ext(c, scores, in.mask, spec.attention_scale, 0.0F);
    ggml_tensor* out = ggml_mul_mat(c, v_cols, weights);  // [head_dim, n_rows, n_head]
    return ggml_cont_2d(c, ggml_permute(c, out, 0, 2, 1, 3), std::int64_t{spec.head_dim} * spec.n_head,
                        unit.shape.n_rows);
  }

  void fill(const Batch& batch, const Unit& unit, const UnitKey& key, std::size_t group, UnitInputs& in) override {
    const auto keys = static_cast<std::size_t>(key.shape.keys[group]);
    bytes_read_ += keys * bytes_of_token(group);
    const auto block_size = static_cast<std::size_t>(config_.store->block_size());
    auto* ids = static_cast<std::int32_t*>(in.ids->data);
    for (std::size_t i = 0; i < keys; ++i) {
      ids[i] = static_cast<std::int32_t>(static_cast<std::size_t>(unit.blocks[group][i / block_size]) * block_size +
                                         i % block_size);
    }
    auto* mask = static_cast<float*>(in.mask->data);
    std::fill_n(mask, ggml_nelements(in.mask), -INFINITY);
    for_each_visible_run(batch, unit, config_.groups[group], group, [&](int row, std::int64_t first, std::int64_t end) {
      float* m = mask + static_cast<std::size_t>(row) * keys;
      std::fill(m + first, m + end, 0.0F);
    });
  }

  KvTraffic kv_traffic() const override { return {bytes_read_, 0}; }

 private:
  /// What a step loads for a token in all of the group's layers: from the pool in its format, then keys, values and the
  /// values turned over as f32, whatever the format.
  std::size_t bytes_of_token(std::size_t group) const {
    const kv::GroupSpec& spec = config_.groups[group];
    const std::size_t row = static_cast<std::size_t>(config_.store->n_embd_kv()) * sizeof(float);
    return spec.bytes_per_token + 3 * row * spec.layers.size();
  }

  AttentionConfig config_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<Attention> make_dense_attention(const AttentionConfig& config) {
  return std::make_unique<DenseAttention>(config);
}

}  // namespace coppice::executor
