#include "executor/ggml/store/kv_store.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "model/load_error.h"

namespace coppice::executor {

KvStore::KvStore(PageLayout layout, std::size_t budget_bytes, int n_threads, const Progress& progress)
    : layout_(std::move(layout)) {
  const std::size_t page = layout_.page_bytes;
  const int scratch_blocks = (kScratchRows + layout_.block_size - 1) / layout_.block_size;
  std::size_t blocks = budget_bytes / page;
  for (const kv::GroupSpec& group : std::span(layout_.groups).first(static_cast<std::size_t>(layout_.n_tables()))) {
    const std::size_t row = layout_.layers[static_cast<std::size_t>(group.layers.front())].row_bytes;
    const std::size_t unit = std::gcd(page, row);
    steps_.push_back({static_cast<std::int64_t>(page / unit), static_cast<std::int64_t>(row / unit)});
    // Backends that copy rows out of the pool number them in 32 bits.
    const std::size_t most = std::numeric_limits<std::int32_t>::max() / (page / unit);
    blocks = std::min(blocks, most - std::min(most, static_cast<std::size_t>(scratch_blocks)));
  }
  if (blocks < 2) {
    throw model::LoadError(fmt::format("a KV budget of {} bytes is too small: two blocks of {} tokens take {} bytes",
                                       budget_bytes, layout_.block_size, 2 * page));
  }
  num_blocks_ = static_cast<std::int32_t>(blocks);
  const std::size_t bytes = page * (blocks + static_cast<std::size_t>(scratch_blocks));
  spdlog::info("taking {:.1f} MiB of memory for keys and values", static_cast<double>(bytes) / (1 << 20));
  memory_ = PoolMemory(bytes, n_threads, progress);
  buffer_.reset(ggml_backend_cpu_buffer_from_ptr(memory_.data(), memory_.size()));
  context_ = make_context(2 * layout_.layers.size());
  for (const PageLayout::Layer& layer : layout_.layers) add_tensors(layer);
}

void KvStore::add_tensors(const PageLayout::Layer& layer) {
  for (auto* tensors : {&k_, &v_}) {
    if (layer.group < 0) {
      tensors->push_back(nullptr);
      continue;
    }
    const bool f16 = layout_.format == attention::KvFormat::kF16;
    const std::size_t values = layer.row_bytes * static_cast<std::size_t>(layout_.block_size);
    const std::int64_t last = scratch_row(static_cast<std::size_t>(layer.group), kScratchRows - 1);
    ggml_tensor* t = ggml_new_tensor_2d(context_.get(), f16 ? GGML_TYPE_F16 : GGML_TYPE_I8,
                                        static_cast<std::int64_t>(layer.row_bytes / (f16 ? 2 : 1)), last + 1);
    // Rows overlap where a page is no whole number of them: then only every few are slots.
    t->nb[1] = layer.row_bytes / static_cast<std::size_t>(steps_[static_cast<std::size_t>(layer.group)].slot);
    t->nb[2] = t->nb[3] = t->nb[1] * static_cast<std::size_t>(t->ne[1]);
    ggml_backend_tensor_alloc(buffer_.get(), t, memory_.data() + layer.offset + (tensors == &v_ ? values : 0));
    tensors->push_back(t);
  }
}

void KvStore::run(std::span<const kv::BlockOp> ops, std::span<const std::span<std::byte>> outside) {
  for (const kv::BlockOp& op : ops) {
    if (op.kind == kv::BlockOp::Kind::kCopy) {
      copy(op);
      continue;
    }
    std::byte* const there = outside[op.outside].data();
    const std::size_t bytes = outside_bytes(static_cast<std::size_t>(op.group));
    if (op.kind == kv::BlockOp::Kind::kStore) {
      std::memcpy(there, page(op.src), bytes);
    } else {
      std::memcpy(page(op.dst), there, bytes);
    }
  }
}

void KvStore::copy(const kv::BlockOp& op) {
  const std::byte* src = page(op.src);
  std::byte* dst = page(op.dst);
  for (const int i : layout_.groups[static_cast<std::size_t>(op.group)].layers) {
    const PageLayout::Layer& layer = layout_.layers[static_cast<std::size_t>(i)];
    const std::size_t values = layer.offset + layer.row_bytes * static_cast<std::size_t>(layout_.block_size);
    for (const std::size_t at : {layer.offset, values}) {
      std::memmove(dst + at, src + at, layer.row_bytes * static_cast<std::size_t>(op.n_slots));
    }
  }
}

}  // namespace coppice::executor
