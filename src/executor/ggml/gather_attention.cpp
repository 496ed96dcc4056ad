// gather: the portable path. A unit's blocks are copied together once per layer (or read in place when they lie side
// by side), then ggml's own operations attend to them; rows see theirs by mask. docs/adr/0002-gather.md has the figures.
#include <algorithm>

#include "executor/ggml/attention.h"

namespace coppice::executor {

namespace {

/// Rows of a unit from which ggml's fused attention works in tiles (GGML_FA_TILE_Q); docs/adr/0002-gather.md.
constexpr int kTiledRows = 64;

constexpr ggml_fp16_t kMaskSeen = 0x0000;    // 0
constexpr ggml_fp16_t kMaskHidden = 0xFC00;  // -inf

/// Reads the same bytes as another type: ggml has no such view. REQUIRES: t is a view node, rows of whole elements.
ggml_tensor* reinterpret(ggml_tensor* t, ggml_type type) {
  const auto from = static_cast<std::int64_t>(ggml_type_size(t->type)),
             to = static_cast<std::int64_t>(ggml_type_size(type));
  t->ne[0] = t->ne[0] * from / to;
  t->nb[0] = static_cast<std::size_t>(to);
  t->type = type;
  return t;
}

class GatherAttention final : public Attention {
 public:
  explicit GatherAttention(const AttentionConfig& config) : config_(config) {}

  std::string_view name() const override { return "gather"; }
  PlanPolicy policy() const override { return {}; }
  bool portable() const override { return true; }

  /// One stream whose blocks follow each other, with the padding behind them inside the pool: what lies there is
  /// somebody else's, finite and masked.
  bool in_place(const Unit& unit, const UnitShape& shape) const override {
    if (shape.n_streams != 1) return false;
    for (std::size_t g = 0; g < unit.blocks.size(); ++g) {
      const auto& blocks = unit.blocks[g];
      for (std::size_t i = 1; i < blocks.size() && blocks[i] != kv::kNullBlock; ++i) {
        if (blocks[i] != blocks[i - 1] + 1) return false;
      }
      if (blocks.empty() || blocks[0] == kv::kNullBlock ||
          blocks[0] + static_cast<std::int64_t>(blocks.size()) > config_.store->num_blocks()) {
        return false;
      }
    }
    return true;
  }

  UnitInputs declare(ggml_context* c, const UnitKey& unit, std::size_t group) const override {
    const int keys = unit.shape.keys[group];
    UnitInputs in;
    if (!unit.in_place) {
      in.ids = ggml_new_tensor_1d(c, GGML_TYPE_I32, unit.shape.n_streams * (keys / config_.store->block_size()));
    }
    in.mask = ggml_new_tensor_4d(c, GGML_TYPE_F16, keys, unit.shape.n_rows, 1, unit.shape.n_streams);
    return in;
  }

  ggml_tensor* build(ggml_context* c, ggml_tensor* q, ggml_tensor* k, ggml_tensor* v, const UnitKey& unit,
                     std::size_t group, UnitInputs& in) const override {
    ggml_tensor* keys = fetch(c, k, unit, group, in);
    return fused_is_best(unit.shape) ? fused(c, q, keys, fetch(c, v, unit, group, in), unit.shape, in)
                                     : products(c, q, keys, fetch_f32(c, v, unit, group, in), unit.shape, in);
  }

  void fill(const Batch& batch, const Unit& unit, const UnitKey& key, std::size_t group, UnitInputs& in) override {
    const auto keys = static_cast<std::size_t>(key.shape.keys[group]);
    bytes_read_ += bytes_of(key, group);
    if (in.ids) {
      std::ranges::copy(unit.blocks[group], static_cast<std::int32_t*>(in.ids->data));
    } else {
      for (const KeyView& view : in.views) {
        view.tensor->data = static_cast<std::byte*>(view.pool->data) +
                            static_cast<std::size_t>(unit.blocks[group][0]) * config_.store->block_bytes();
      }
    }
    auto* mask = static_cast<ggml_fp16_t*>(in.mask->data);
    std::fill_n(mask, ggml_nelements(in.mask), kMaskHidden);
    for_each_visible_run(batch, unit, config_.groups[group], group, [&](int row, std::int64_t first, std::int64_t end) {
      ggml_fp16_t* m = mask + static_cast<std::size_t>(row) * keys;
      std::fill(m + first, m + end, kMaskSeen);
    });
  }

  KvTraffic kv_traffic() const override { return {bytes_read_, 0}; }

 private:
  /// Many rows: it works in tiles. One row alone: nothing is there to pay for values in f32. Never by block ids, or they
  /// would decide the bits.
  static bool fused_is_best(const UnitShape& shape) {
    return shape.n_rows >= kTiledRows || shape.n_rows * shape.n_streams == 1;
  }

  /// ggml's fused attention: from kTiledRows rows on it works in tiles; below, row by row with f16 sums.
  /// keys, values: [head_dim, keys, n_kv_head, n_streams] f16.
  ggml_tensor* fused(ggml_context* c, ggml_tensor* q, ggml_tensor* keys, ggml_tensor* values, const UnitShape& shape,
                     const UnitInputs& in) const {
    const auto& spec = *config_.spec;
    ggml_tensor* rows =
        ggml_permute(c, ggml_reshape_4d(c, q, spec.head_dim, spec.n_head, shape.n_rows, shape.n_streams), 0, 2, 1, 3);
    // [head_dim, n_head, n_rows, n_streams]
    ggml_tensor* out = ggml_flash_attn_ext(c, rows, keys, values, in.mask, spec.attention_scale, 0.0F, 0.0F);
    return ggml_reshape_2d(c, out, std::int64_t{spec.head_dim} * spec.n_head,
                           std::int64_t{shape.n_rows} * shape.n_streams);
  }

  /// softmax(Q K^T) V as three operations. A single row's heads are the columns of the first product, so that a key head
  /// is read once for all the query heads on it. The outer product wants V as rows, as the pool has it; a matrix
  /// product would want it transposed. values: f32.
  ggml_tensor* products(ggml_context* c, ggml_tensor* q, ggml_tensor* keys, ggml_tensor* values, const UnitShape& shape,
                        const UnitInputs& in) const {
    const auto& spec = *config_.spec;
    const std::int64_t dim = spec.head_dim, n = keys->ne[1], rows = shape.n_rows, streams = shape.n_streams;
    const std::int64_t heads_per_key = spec.n_head / spec.n_kv_head;
    const bool fold = rows == 1;
    ggml_tensor* queries = fold ? ggml_reshape_4d(c, q, dim, heads_per_key, spec.n_kv_head, streams)
                                : ggml_permute(c, ggml_reshape_4d(c, q, dim, spec.n_head, rows, streams), 0, 2, 1, 3);
    ggml_tensor* scores = ggml_reshape_4d(c, ggml_mul_mat(c, keys, queries), n, rows, spec.n_head, streams);
    ggml_tensor* weights = ggml_soft_max_ext(c, scores, in.mask, spec.attention_scale, 0.0F);
    if (fold) weights = ggml_reshape_4d(c, weights, n, heads_per_key, spec.n_kv_head, streams);
    ggml_tensor* out = ggml_out_prod(c, values, ggml_transpose(c, weights));
    if (fold) return ggml_reshape_2d(c, out, dim * spec.n_head, streams);  // [dim, heads_per_key, n_kv_head, streams]
    return ggml_cont_2d(c, ggml_permute(c, out, 0, 2, 1, 3), dim * spec.n_head, rows * streams);
  }

  /// A unit's values in f32: [head_dim, keys, n_kv_head, n_streams].
  ggml_tensor* fetch_f32(ggml_context* c, ggml_tensor* pool, const UnitKey& unit, std::size_t group,
                         UnitInputs& in) const {
    const auto& spec = *config_.spec;
    const int keys = unit.shape.keys[group];
    const std::int64_t values = config_.store->n_embd_kv();
    ggml_tensor* f32 = nullptr;
    if (unit.in_place) {
      ggml_tensor* view = ggml_view_2d(c, pool, values, keys, pool->nb[1], 0);
      in.views.push_back({view, pool});
      f32 = ggml_cast(c, view, GGML_TYPE_F32);
    } else {
      f32 = ggml_get_rows(c, as_blocks(c, pool), in.ids);
    }
    const std::size_t head = static_cast<std::size_t>(spec.head_dim) * sizeof(float);
    const std::size_t slot = static_cast<std::size_t>(values) * sizeof(float);
    return ggml_view_4d(c, f32, spec.head_dim, keys, spec.n_kv_head, unit.shape.n_streams, slot, head,
                        slot * static_cast<std::size_t>(keys), 0);
  }

  /// The pool as rows of whole blocks.
  ggml_tensor* as_blocks(ggml_context* c, ggml_tensor* pool) const {
    const KvStore& store = *config_.store;
    return ggml_view_2d(c, pool, std::int64_t{store.n_embd_kv()} * store.block_size(), store.all_blocks(),
                        store.block_bytes(), 0);
  }

  /// A unit's keys (or values): [head_dim, keys, n_kv_head, n_streams] f16.
  ggml_tensor* fetch(ggml_context* c, ggml_tensor* pool, const UnitKey& unit, std::size_t group, UnitInputs& in) const {
    const auto& spec = *config_.spec;
    const int keys = unit.shape.keys[group];
    const std::size_t head = static_cast<std::size_t>(spec.head_dim) * sizeof(ggml_fp16_t);
    const std::size_t slot = head * static_cast<std::size_t>(spec.n_kv_head);
    const std::size_t stream = slot * static_cast<std::size_t>(keys);
    if (unit.in_place) {
      ggml_tensor* view = ggml_view_4d(c, pool, spec.head_dim, keys, spec.n_kv_head, 1, slot, head, stream, 0);
      in.views.push_back({view, pool});
      return view;
    }
    // ggml_get_rows turns f16 rows into f32; i32 rows keep their bits.
    ggml_tensor* blocks = reinterpret(as_blocks(c, pool), GGML_TYPE_I32);
    ggml_tensor* gathered = ggml_get_rows(c, blocks, in.ids);
    return reinterpret(
        ggml_view_4d(c, gathered, spec.head_dim / 2, keys, spec.n_kv_head, unit.shape.n_streams, slot, head, stream, 0),
        GGML_TYPE_F16);
  }

  /// What a step loads for a unit, in all of the group's layers: from the pool, and from the copies made of it. Values are
  /// copied as f32 for the three products.
  std::uint64_t bytes_of(const UnitKey& unit, std::size_t group) const {
    const std::uint64_t pool = static_cast<std::uint64_t>(unit.shape.n_streams) *
                               static_cast<std::uint64_t>(unit.shape.keys[group]) *
                               config_.groups[group].bytes_per_token;
    if (!fused_is_best(unit.shape)) return unit.in_place ? 2 * pool : 5 * pool / 2;
    return unit.in_place ? pool : 2 * pool;
  }

  AttentionConfig config_;
  std::uint64_t bytes_read_ = 0;
};

}  // namespace

std::unique_ptr<Attention> make_gather_attention(const AttentionConfig& config) {
  return std::make_unique<GatherAttention>(config);
}

}  // namespace coppice::executor
