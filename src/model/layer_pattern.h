// Which layers of a decoder see a window only, and which read the keys and values of another.
#pragma once

#include "model/metadata.h"
#include "model/model.h"

namespace coppice::model {

/// "attention.sliding_window", or `otherwise`. 0: there is none, or it holds the model's whole context.
int window_of(const Metadata& metadata, const ModelSpec& spec, int otherwise);

struct SlidingLayers {
  int window = 0;
  /// The last layer of each so many sees everything; "attention.sliding_window_pattern" goes before.
  int full_every = 1;
  RopeSpec rope;         ///< of the layers that slide
  bool chunked = false;  ///< AttentionSpec::chunked, of these
};

/// Sets windows and ropes. The pattern is a number, as full_every, or a list that tells for each layer whether it
/// slides. A model without a window keeps its layers as they are; one whose window holds everything has the ropes,
/// though.
void set_sliding_layers(const Metadata& metadata, ModelSpec& spec, const SlidingLayers& sliding);

/// Layers without keys and values of their own read those of the last layer before them that has some, and sees as
/// much. Refuses layers for which there is none. REQUIRES: windows and ropes are set.
void set_shared_layers(const Metadata& metadata, ModelSpec& spec);

/// Refuses ropes whose numbers make no sense, and layers that no executor could serve: whose ropes don't fit their
/// heads or their factors; that keep the same positions, but with other heads: these lie side by side in one page of
/// the pool. REQUIRES: all else is set.
void check_layers(const Metadata& metadata, const ModelSpec& spec);

}  // namespace coppice::model
