// read_decoder: a ModelSpec of a plain decoder out of a GGUF file: attention and a gated feed-forward, or experts, in
// every layer. What most families have in common; in what they differ is data, or done to the spec afterwards
// (families.cpp).
#pragma once

#include <cstdint>
#include <optional>

#include "model/experts_reader.h"
#include "model/gguf_file.h"
#include "model/metadata.h"
#include "model/model.h"
#include "model/recurrent_reader.h"

namespace coppice::model {

/// Of each head, in some files or in all, or of all heads at once.
enum class QkNorm : std::uint8_t { kNone, kHeadsOrNone, kHeads, kWhole };

/// How the pairs of a head share a position's three parts, where the file says that it has them (RopeSections).
enum class RopeAxes : std::uint8_t { kOne, kSideBySide, kInterleaved };

/// Llama has none of this.
struct DecoderTraits {
  bool rope_halves = false;  ///< RopeSpec::halves
  QkNorm qk_norm = QkNorm::kNone;
  bool v_norm = false;  ///< kUnitNorm; then a layer may lack the matrix of its values
  bool norms_before = true, norms_behind = false;
  const char* feed_forward_norm = "ffn_norm";  ///< the tensor of the norm before the feed-forward
  const char* output_norm = "output_norm";     ///< the tensor of the norm before the logits
  Activation activation = Activation::kSilu;
  std::optional<ExpertTraits> experts = {};  ///< of layers that have a router; nullopt: the family has no such layers
  /// ModelSpec::attention_scale, whatever the file says. 0: the file's, or 1 / sqrt(head_dim); then all layers have
  /// heads of one size.
  float attention_scale = 0;
  RecurrentKind recurrent = RecurrentKind::kNone;
  bool gate_in_q = false;  ///< AttentionSpec::gate_in_q
  RopeAxes rope_axes = RopeAxes::kOne;
};

/// Matrices that the file has in one piece, queries with keys and values, gates with what they gate, are split. Throws
/// LoadError.
ModelSpec read_decoder(GgufFile& file, const Metadata& metadata, const DecoderTraits& traits);

}  // namespace coppice::model
