#include "executor/cuda/device_weights.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "check/mutex.h"
#include "executor/base/ropes.h"
#include "executor/cuda/packed_rows.h"

namespace coppice::executor::cuda {

namespace {

using model::TensorId;

/// Of a piece, packed, about.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

Gate gate_of(model::Activation activation) {
  switch (activation) {
    case model::Activation::kGelu:
      return Gate::kGelu;
    case model::Activation::kClamped:
      return Gate::kClamped;
    case model::Activation::kSilu:
      break;
  }
  return Gate::kSilu;
}

ExpertWeights weights_of(model::Gating gating) {
  switch (gating) {
    case model::Gating::kSigmoid:
      return ExpertWeights::kSigmoid;
    case model::Gating::kSoftmaxOfChosen:
      return ExpertWeights::kSoftmaxOfChosen;
    case model::Gating::kSoftmax:
      break;
  }
  return ExpertWeights::kSoftmax;
}

/// A file's matrix has its outputs in rows.
std::int64_t n_out(const model::TensorInfo& tensor) {
  return tensor.shape[1];
}
/// Experts have a tensor for all of them.
std::int64_t n_matrices(const model::TensorInfo& tensor) {
  return tensor.shape.size() > 2 ? tensor.shape[2] : 1;
}

}  // namespace

DeviceWeights::DeviceWeights(const Gpu& gpu, const model::Model& model, const Progress& progress) : model_(model) {
  const model::ModelSpec& spec = model.spec;
  shape_ = {.n_embd = spec.n_embd,
            .n_vocab = spec.n_vocab,
            .eps = spec.norm_eps,
            .eps_behind = spec.norm_eps_behind,
            .embedding_scale = spec.embedding_scale,
            .residual_scale = spec.residual_scale,
            .logit_scale = spec.logit_scale,
            .logit_softcap = spec.logit_softcap,
            .n_planes = spec.n_planes,
            .position_size = spec.has_sections() ? 3 : 1};
  for (const model::LayerSpec& layer : spec.layers) add_to_shape(layer);
  check_room();
  for (const attention::Rope& rope : make_ropes(model)) {
    std::vector<float> angles;
    for (int i = 0; i < rope.dims() / 2; ++i) angles.push_back(static_cast<float>(rope.angle(i)));
    frequencies_.emplace_back(angles.data(), angles.size() * sizeof(float), "rotations");
    axes_.emplace_back();
    if (rope.has_axes()) axes_.back() = DeviceMemory(rope.axes().data(), rope.axes().size(), "rotations");
  }
  for (const model::LayerSpec& layer : spec.layers) add_layer(layer);
  final_norm_ = norm(spec.output_norm, spec.n_embd);
  embedding_norm_ = norm(spec.embedding_norm, spec.n_embd);
  embeddings_ = matrix(spec.embedding);
  logits_ = spec.output.weight == spec.embedding ? embeddings_ : matrix(spec.output.weight);
  logit_bias_ = numbers(spec.output.bias);
  copy_pieces(gpu, progress);
}

Decoder DeviceWeights::decoder() const {
  return {shape_, layers_, embeddings_, logits_, final_norm_, logit_bias_, embedding_norm_};
}

/// Layers may lack a feed-forward, or experts; else they have the same, but for heads and the feed-forward's width.
void DeviceWeights::add_to_shape(const model::LayerSpec& layer) {
  const model::AttentionSpec& mixer = layer.mixer;
  const model::HeadsSpec& heads = mixer.heads;
  const int n_gates = mixer.gate.weight == model::kNoTensor ? 0 : static_cast<int>(n_out(info(mixer.gate.weight)));
  shape_.n_q = std::max(shape_.n_q, heads.n_head * heads.head_dim);
  shape_.n_qkv = std::max(shape_.n_qkv, (heads.n_head + 2 * heads.n_kv_head) * heads.head_dim + n_gates);
  if (layer.feed_forward.up.weight != model::kNoTensor) {
    shape_.n_ff = std::max(shape_.n_ff, static_cast<int>(n_out(info(layer.feed_forward.up.weight))));
    shape_.gate = gate_of(layer.feed_forward.activation);
  }
  if (layer.experts.n == 0) return;
  shape_.experts = {.n = layer.experts.n,
                    .n_used = layer.experts.n_used,
                    .n_ff = static_cast<int>(n_out(info(layer.experts.up.weight))),
                    .gate = gate_of(layer.experts.activation),
                    .weights = weights_of(layer.experts.gating),
                    .normalised = layer.experts.normalised,
                    .scale = layer.experts.scale,
                    .weighs_inputs = layer.experts.weighs_inputs};
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
  for (const TensorId id : ids) {
    wanted += static_cast<std::size_t>(n_matrices(info(id))) *
              packed_bytes(packed_type(info(id)), info(id).shape[0], n_out(info(id)));
  }
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
  return keep(plain_numbers(*model_.file, info(id)));
}

/// Of n values.
const float* DeviceWeights::norm(TensorId id, int n) {
  return id == model::kUnitNorm ? keep(std::vector<float>(static_cast<std::size_t>(n), 1.0F)) : numbers(id);
}

const float* DeviceWeights::keep(const std::vector<float>& values) {
  bytes_ += values.size() * sizeof(float);
  return memory_.emplace_back(values.data(), values.size() * sizeof(float), "weights").as<float>();
}

void DeviceWeights::add_pieces(TensorId id, std::int64_t matrix, std::byte* to, TensorId pair) {
  const model::TensorInfo& tensor = info(id);
  const std::size_t of_tile = packed_bytes(packed_type(tensor), tensor.shape[0], matmul::cuda::kTileOutputs);
  const auto tiles = static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / of_tile));
  const std::int64_t step = tiles * (pair == model::kNoTensor ? matmul::cuda::kTileOutputs : matmul::cuda::kTilePairs);
  for (std::int64_t at = 0; at < n_out(tensor); at += step) {
    pieces_.push_back({id, pair, matrix, at, std::min(step, n_out(tensor) - at), to});
    to += static_cast<std::size_t>(tiles) * of_tile;
  }
}

PackedMatrix DeviceWeights::matrix(TensorId id) {
  return joined({id}).parts[0].matrix;
}

/// Those that are there.
PackedMatrices DeviceWeights::joined(std::vector<TensorId> ids) {
  std::erase(ids, model::kNoTensor);
  PackedMatrices matrices;
  for (auto id = ids.begin(); id != ids.end();) {
    const matmul::QuantType type = packed_type(info(*id));
    const auto end = std::find_if(id, ids.end(), [&](TensorId other) { return packed_type(info(other)) != type; });
    std::int64_t outputs = 0;
    for (auto i = id; i != end; ++i) outputs += n_out(info(*i));
    const std::int64_t n = n_matrices(info(*id));
    const std::size_t bytes = packed_bytes(type, info(*id).shape[0], outputs);
    std::byte* to = take(static_cast<std::size_t>(n) * bytes);
    matrices.parts[static_cast<std::size_t>(matrices.n++)] = {{type, to, static_cast<std::int64_t>(bytes)},
                                                              static_cast<int>(outputs)};
    for (std::int64_t i = 0; i < n; ++i) {
      for (auto one = id; one != end; ++one) {
        add_pieces(*one, i, to);
        to += packed_bytes(type, info(*one).shape[0], n_out(info(*one)));
      }
    }
    id = end;
  }
  return matrices;
}

/// Of one type they are pairs; else there are two products.
PackedMatrices DeviceWeights::gate_up(const model::GatedSpec& spec) {
  const TensorId gate = spec.gate.weight, up = spec.up.weight;
  const matmul::QuantType type = packed_type(info(gate));
  if (packed_type(info(up)) != type) return joined({gate, up});
  const std::int64_t outputs = 2 * n_out(info(gate));
  const std::size_t bytes = packed_bytes(type, info(gate).shape[0], outputs);
  std::byte* to = take(bytes);
  add_pieces(gate, 0, to, up);
  return {{{type, to, static_cast<std::int64_t>(bytes)}, static_cast<int>(outputs)}};
}

Rotation DeviceWeights::rotation(const model::AttentionSpec& mixer) const {
  if (mixer.rope == model::AttentionSpec::kNoRope) return {};
  const auto at = static_cast<std::size_t>(mixer.rope);
  const model::RopeSpec& rope = model_.spec.ropes[at];
  return {rope.dims, rope.halves, frequencies_[at].as<float>(), axes_[at].as<std::uint8_t>(), rope.magnitude};
}

Temperature DeviceWeights::temperature(const model::AttentionSpec& mixer) const {
  const model::TemperatureSpec& t = model_.spec.temperature;
  if (!mixer.sharpened || t.scale == 0) return {};
  return {t.scale, t.length, t.offset};
}

void DeviceWeights::add_layer(const model::LayerSpec& layer) {
  const model::AttentionSpec& mixer = layer.mixer;
  const model::GatedSpec& ff = layer.feed_forward;
  const bool dense = ff.up.weight != model::kNoTensor;
  const int n_embd = shape_.n_embd, head_dim = mixer.heads.head_dim;
  const bool whole_norms = mixer.q_norm >= 0 && info(mixer.q_norm).shape[0] != head_dim;
  layers_.push_back({.attention_norm = norm(layer.mixer_norms.before, n_embd),
                     .ff_norm = norm(layer.feed_forward_norms.before, n_embd),
                     .attention_norm_behind = norm(layer.mixer_norms.behind, n_embd),
                     .ff_norm_behind = norm(layer.feed_forward_norms.behind, n_embd),
                     .qkv = joined({mixer.q.weight, mixer.k.weight, mixer.v.weight, mixer.gate.weight}),
                     .q_bias = numbers(mixer.q.bias),
                     .k_bias = numbers(mixer.k.bias),
                     .v_bias = numbers(mixer.v.bias),
                     .attention_gate_bias = numbers(mixer.gate.bias),
                     .q_norm = norm(mixer.q_norm, head_dim),
                     .k_norm = norm(mixer.k_norm, head_dim),
                     .whole_norms = whole_norms,
                     .sinks = numbers(mixer.sinks),
                     .output = matrix(mixer.o.weight),
                     .output_bias = numbers(mixer.o.bias),
                     .gate_up = dense ? gate_up(ff) : PackedMatrices(),
                     .down = dense ? matrix(ff.down.weight) : PackedMatrix(),
                     .gate_bias = numbers(ff.gate.bias),
                     .up_bias = numbers(ff.up.bias),
                     .down_bias = numbers(ff.down.bias),
                     .experts = experts(layer.experts),
                     .rotation = rotation(mixer),
                     .temperature = temperature(mixer)});
}

ExpertsLayer DeviceWeights::experts(const model::ExpertsSpec& spec) {
  if (spec.n == 0) return {};
  return {.router = matrix(spec.router.weight),
          .router_bias = numbers(spec.router.bias),
          .selection_bias = numbers(spec.selection_bias),
          .scales = numbers(spec.scales),
          .gate_up = joined({spec.gate.weight, spec.up.weight}),
          .down = matrix(spec.down.weight),
          .gate_bias = numbers(spec.gate.bias),
          .up_bias = numbers(spec.up.bias),
          .down_bias = numbers(spec.down.bias),
          .beside_gate = numbers(spec.shared_gate)};
}

std::vector<std::byte> DeviceWeights::packed(const Piece& piece) const {
  const model::TensorInfo& tensor = info(piece.tensor);
  if (piece.pair != model::kNoTensor)
    return pack_pair_rows(*model_.file, tensor, info(piece.pair), piece.first, piece.n);
  return pack_rows(*model_.file, tensor, piece.matrix, piece.first, piece.n);
}

/// Each thread packs a piece and copies it, while others pack theirs.
void DeviceWeights::copy_pieces(const Gpu& gpu, const Progress& progress) {
  std::atomic<std::size_t> next = 0, done = 0;
  struct {
    check::Mutex mutex;
    std::exception_ptr failure COPPICE_GUARDED_BY(mutex);
  } failed;
  const auto work = [&] {
    try {
      check(cudaSetDevice(gpu.number()), "device");
      for (std::size_t i = next++; i < pieces_.size(); i = next++) {
        const Piece& piece = pieces_[i];
        const std::vector<std::byte> bytes = packed(piece);
        check(cudaMemcpy(piece.to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "weights");
        ++done;
      }
    } catch (...) {
      check::Lock lock(failed.mutex);
      if (!failed.failure) failed.failure = std::current_exception();
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
  check::Lock lock(failed.mutex);
  if (failed.failure) std::rethrow_exception(failed.failure);
  for (const TensorId id : model_.spec.matrices()) model_.file->let_go(info(id));
  pieces_.clear();
}

}  // namespace coppice::executor::cuda
