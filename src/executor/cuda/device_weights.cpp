#include "executor/cuda/device_weights.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "executor/base/ropes.h"
#include "executor/cuda/packed_rows.h"

namespace coppice::executor::cuda {

namespace {

using model::TensorId;

/// Of a piece, packed, about.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

Gate gate_of(model::Activation activation) {
  return activation == model::Activation::kGelu ? Gate::kGelu : Gate::kSilu;
}

/// A file's matrix has its outputs in rows.
std::int64_t n_out(const model::TensorInfo& tensor) {
  return tensor.shape[1];
}

}  // namespace

DeviceWeights::DeviceWeights(const model::Model& model, const Progress& progress) : model_(model) {
  const model::ModelSpec& spec = model.spec;
  const model::LayerSpec& first = spec.layers.front();
  shape_ = {.n_embd = spec.n_embd,
            .n_head = first.mixer.heads.n_head,
            .n_kv_head = first.mixer.heads.n_kv_head,
            .head_dim = first.mixer.heads.head_dim,
            .n_ff = static_cast<int>(n_out(info(first.feed_forward.up.weight))),
            .n_vocab = spec.n_vocab,
            .eps = spec.norm_eps,
            .embedding_scale = spec.embedding_scale,
            .gate = gate_of(first.feed_forward.activation)};
  check_room();
  for (const attention::Rope& rope : make_ropes(model)) {
    std::vector<float> angles;
    for (int i = 0; i < rope.dims() / 2; ++i) angles.push_back(static_cast<float>(rope.angle(i)));
    frequencies_.emplace_back(angles.data(), angles.size() * sizeof(float), "rotations");
  }
  for (const model::LayerSpec& layer : spec.layers) add_layer(layer, frequencies_);
  final_norm_ = numbers(spec.output_norm);
  embeddings_ = matrix(spec.embedding);
  logits_ = spec.output.weight == spec.embedding ? embeddings_ : matrix(spec.output.weight);
  copy_pieces(progress);
}

Decoder DeviceWeights::decoder() const {
  return {shape_, layers_, embeddings_, logits_, final_norm_};
}

const model::TensorInfo& DeviceWeights::info(TensorId id) const {
  return model_.file->tensors()[static_cast<std::size_t>(id)];
}

/// Before anything is copied: a large model takes long.
void DeviceWeights::check_room() const {
  std::vector<TensorId> ids = model_.spec.matrices();
  ids.push_back(model_.spec.embedding);
  std::ranges::sort(ids);
  const auto doubles = std::ranges::unique(ids);
  ids.erase(doubles.begin(), doubles.end());
  std::size_t wanted = 0;
  for (const TensorId id : ids) wanted += packed_bytes(packed_type(info(id)), info(id).shape[0], n_out(info(id)));
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  if (const std::size_t free = free_bytes(); wanted > free) {
    throw model::LoadError(fmt::format("too little GPU memory: the weights of {} take {:.2f} GiB, {:.2f} GiB are free",
                                       model_.file->path(), static_cast<double>(wanted) / kGiB,
                                       static_cast<double>(free) / kGiB));
  }
}

std::byte* DeviceWeights::take(std::size_t bytes) {
  bytes_ += bytes;
  return memory_.emplace_back(bytes, "weights").as<std::byte>();
}

/// nullptr for kNoTensor.
const float* DeviceWeights::numbers(TensorId id) {
  if (id == model::kNoTensor) return nullptr;
  const std::vector<float> values = plain_numbers(*model_.file, info(id));
  bytes_ += values.size() * sizeof(float);
  return memory_.emplace_back(values.data(), values.size() * sizeof(float), "weights").as<float>();
}

void DeviceWeights::add_pieces(TensorId id, std::byte* to) {
  const model::TensorInfo& tensor = info(id);
  const std::size_t of_tile = packed_bytes(packed_type(tensor), tensor.shape[0], matmul::cuda::kTileOutputs);
  const auto tiles = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / of_tile));
  const std::int64_t step = tiles * matmul::cuda::kTileOutputs;
  for (std::int64_t at = 0; at < n_out(tensor); at += step) {
    pieces_.push_back({id, at, std::min(step, n_out(tensor) - at), to});
    to += static_cast<std::size_t>(tiles) * of_tile;
  }
}

PackedMatrix DeviceWeights::matrix(TensorId id) {
  return joined({id}).parts[0].matrix;
}

PackedMatrices DeviceWeights::joined(std::initializer_list<TensorId> ids) {
  PackedMatrices matrices;
  for (auto id = ids.begin(); id != ids.end();) {
    const matmul::QuantType type = packed_type(info(*id));
    const auto end = std::find_if(id, ids.end(), [&](TensorId other) { return packed_type(info(other)) != type; });
    std::int64_t outputs = 0;
    for (auto i = id; i != end; ++i) outputs += n_out(info(*i));
    std::byte* to = take(packed_bytes(type, info(*id).shape[0], outputs));
    matrices.parts[static_cast<std::size_t>(matrices.n++)] = {{type, to}, static_cast<int>(outputs)};
    for (; id != end; ++id) {
      add_pieces(*id, to);
      to += packed_bytes(type, info(*id).shape[0], n_out(info(*id)));
    }
  }
  return matrices;
}

Rotation DeviceWeights::rotation(const model::AttentionSpec& mixer, std::span<const DeviceMemory> frequencies) const {
  if (mixer.rope == model::AttentionSpec::kNoRope) return {};
  const auto at = static_cast<std::size_t>(mixer.rope);
  const model::RopeSpec& rope = model_.spec.ropes[at];
  return {rope.dims, rope.halves, frequencies[at].as<float>(), rope.magnitude};
}

void DeviceWeights::add_layer(const model::LayerSpec& layer, std::span<const DeviceMemory> frequencies) {
  const model::AttentionSpec& mixer = layer.mixer;
  const model::GatedSpec& ff = layer.feed_forward;
  layers_.push_back({.attention_norm = numbers(layer.mixer_norms.before),
                     .ff_norm = numbers(layer.feed_forward_norms.before),
                     .attention_norm_behind = numbers(layer.mixer_norms.behind),
                     .ff_norm_behind = numbers(layer.feed_forward_norms.behind),
                     .qkv = joined({mixer.q.weight, mixer.k.weight, mixer.v.weight}),
                     .q_bias = numbers(mixer.q.bias),
                     .k_bias = numbers(mixer.k.bias),
                     .v_bias = numbers(mixer.v.bias),
                     .q_norm = numbers(mixer.q_norm),
                     .k_norm = numbers(mixer.k_norm),
                     .output = matrix(mixer.o.weight),
                     .gate_up = joined({ff.gate.weight, ff.up.weight}),
                     .down = matrix(ff.down.weight),
                     .rotation = rotation(mixer, frequencies)});
}

/// Each thread packs a piece and copies it, while others pack theirs.
void DeviceWeights::copy_pieces(const Progress& progress) {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  std::atomic<std::size_t> next = 0, done = 0;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    try {
      check(cudaSetDevice(device), "device");
      for (std::size_t i = next++; i < pieces_.size(); i = next++) {
        const Piece& piece = pieces_[i];
        const std::vector<std::byte> packed = pack_rows(*model_.file, info(piece.tensor), piece.first, piece.n);
        check(cudaMemcpy(piece.to, packed.data(), packed.size(), cudaMemcpyHostToDevice), "weights");
        ++done;
      }
    } catch (...) {
      const std::lock_guard lock(failing);
      if (!failure) failure = std::current_exception();
      next = pieces_.size();
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  try {
    while (progress && done < pieces_.size() && next < pieces_.size()) {
      progress("weights", 0.9 * static_cast<double>(done) / static_cast<double>(pieces_.size()));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (...) {
    next = pieces_.size();
    threads.clear();
    throw;
  }
  threads.clear();
  if (failure) std::rethrow_exception(failure);
  for (const TensorId id : model_.spec.matrices()) model_.file->let_go(info(id));
  pieces_.clear();
}

}  // namespace coppice::executor::cuda
