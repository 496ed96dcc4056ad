// DeviceWeights: a model's weights in the GPU's memory, as a Decoder. Owns the memory. Immutable after construction,
// but for the layers' places in the pool.
#pragma once

#include <cstddef>
#include <vector>

#include "executor/base/progress.h"
#include "executor/cuda/decoder_step.h"
#include "executor/cuda/device_memory.h"
#include "model/model.h"

namespace coppice::executor::cuda {

class DeviceWeights {
 public:
  /// On the GPU that is current. Packs and copies on all cores; gives the file's pages back. Tells stage "weights" of
  /// the progress, whose exceptions end it. Throws model::LoadError when the GPU has too little memory. REQUIRES:
  /// misfit(model) is empty.
  DeviceWeights(const Gpu& gpu, const model::Model& model, const Progress& progress);
  DeviceWeights(const DeviceWeights&) = delete;
  DeviceWeights& operator=(const DeviceWeights&) = delete;

  /// Layers' groups, keys and values are left to fill in.
  std::vector<DecoderLayer>& layers() { return layers_; }
  /// Valid as long as this is. With layers() as they are.
  Decoder decoder() const;
  std::size_t bytes() const { return bytes_; }

 private:
  /// Rows of a matrix, of several the one with this number, that a thread packs and copies at once; or of one and its
  /// pair (pack_pair_rows).
  struct Piece {
    model::TensorId tensor = model::kNoTensor, pair = model::kNoTensor;
    std::int64_t matrix = 0, first = 0, n = 0;
    std::byte* to = nullptr;
  };

  const model::TensorInfo& info(model::TensorId id) const;
  const float* numbers(model::TensorId id);
  const float* norm(model::TensorId id, int n);
  const float* keep(const std::vector<float>& values);
  PackedMatrix matrix(model::TensorId id);
  PackedMatrices joined(std::vector<model::TensorId> ids);
  std::byte* take(std::size_t bytes);
  PackedMatrices gate_up(const model::GatedSpec& spec);
  void add_pieces(model::TensorId id, std::int64_t matrix, std::byte* to, model::TensorId pair = model::kNoTensor);
  std::vector<std::byte> packed(const Piece& piece) const;
  ExpertsLayer experts(const model::ExpertsSpec& spec);
  Rotation rotation(const model::AttentionSpec& mixer) const;
  Temperature temperature(const model::AttentionSpec& mixer) const;
  void add_layer(const model::LayerSpec& layer);
  void copy_pieces(const Gpu& gpu, const Progress& progress);
  void check_room() const;
  void add_to_shape(const model::LayerSpec& layer);

  const model::Model& model_;
  DecoderShape shape_;
  std::vector<DeviceMemory> memory_;
  std::vector<DeviceMemory> frequencies_, axes_;  ///< as ModelSpec::ropes
  std::vector<DecoderLayer> layers_;
  std::vector<Piece> pieces_;
  PackedMatrix embeddings_, logits_;
  const float *final_norm_ = nullptr, *logit_bias_ = nullptr, *embedding_norm_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace coppice::executor::cuda
