#include "executor/ggml/kv_store.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/gguf_file.h"

namespace coppice::executor {

namespace {

constexpr std::size_t kTensorAlignment = 4096;

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

KvStore::KvStore(const KvStoreConfig& config) : config_(config) {
  const std::size_t blocks = config.budget_bytes / bytes_per_block();
  // Slots are gathered by 32-bit row numbers.
  const std::size_t most = std::numeric_limits<std::int32_t>::max() / static_cast<std::size_t>(config.block_size) - 64;
  num_blocks_ = static_cast<std::int32_t>(std::min(blocks, most));
  if (num_blocks_ < 2) {
    throw model::LoadError(fmt::format("a KV budget of {} bytes holds no block of {} tokens ({} bytes each); give more",
                                       config.budget_bytes, config.block_size, bytes_per_block()));
  }
  all_blocks_ = num_blocks_ + (kScratchRows + config.block_size - 1) / config.block_size;

  const auto n_tensors = static_cast<std::size_t>(2 * config.n_layer_slots);
  const std::size_t tensor_bytes = round_up(block_bytes() * static_cast<std::size_t>(all_blocks_), kTensorAlignment);
  mapped_bytes_ = n_tensors * tensor_bytes;
  // Fresh pages are zero already, and cost nothing before their first write.
  memory_ = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    throw model::LoadError(fmt::format("not enough memory for a KV pool of {} bytes", mapped_bytes_));
  }
  ::madvise(memory_, mapped_bytes_, MADV_HUGEPAGE);
  buffer_.reset(ggml_backend_cpu_buffer_from_ptr(memory_, mapped_bytes_));
  context_ = make_context(n_tensors);
  for (std::size_t i = 0; i < n_tensors; ++i) {
    ggml_tensor* t = ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, config.n_embd_kv,
                                        std::int64_t{all_blocks_} * config.block_size);
    ggml_backend_tensor_alloc(buffer_.get(), t, static_cast<std::byte*>(memory_) + i * tensor_bytes);
    (i % 2 == 0 ? k_ : v_).push_back(t);
  }
}

KvStore::~KvStore() {
  if (memory_) ::munmap(memory_, mapped_bytes_);
}

std::size_t KvStore::block_bytes() const {
  return static_cast<std::size_t>(config_.block_size) * static_cast<std::size_t>(config_.n_embd_kv) *
         sizeof(ggml_fp16_t);
}

void KvStore::copy(std::span<const kv::CopyOp> copies) {
  const std::size_t row = block_bytes() / static_cast<std::size_t>(config_.block_size);
  for (const kv::CopyOp& op : copies) {
    const std::size_t n = row * static_cast<std::size_t>(op.n_slots);
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
