// gather: the tensor library's fused attention. docs/decisions.md, "Three backends" has the figures.
#include "executor/ggml/graph/sequence_attention.h"

namespace coppice::executor {

namespace {

class GatherAttention final : public SequenceAttention {
 public:
  using SequenceAttention::SequenceAttention;

  std::string_view name() const override { return "gather"; }
  bool own_nodes() const override { return false; }

 private:
  ggml_tensor* attend_sequence(ggml_context* c, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, ggml_tensor* mask,
                               ggml_tensor* sinks, const attention::HeadShape& heads) const override {
    const auto by_head = [c](ggml_tensor* t) { return ggml_permute(c, t, 0, 2, 1, 3); };
    ggml_tensor* out = ggml_flash_attn_ext(c, by_head(q), by_head(k), by_head(v), mask, heads.scale, 0.0F,
                                           heads.softcap);  // [head_dim, n_head, n_rows]
    ggml_flash_attn_ext_add_sinks(out, sinks);
    return ggml_reshape_2d(c, out, out->ne[0] * out->ne[1], out->ne[2]);
  }
  int copies() const override { return 2; }
};

}  // namespace

std::unique_ptr<Attention> make_gather_attention(const AttentionConfig& config) {
  return std::make_unique<GatherAttention>(config);
}

}  // namespace coppice::executor
