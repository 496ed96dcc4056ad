// Namespace: all besides its tokens that decides what a block holds and who may see it. Plain data, standard library
// only. Any thread.
//
// An adapter for each request is not built. `adapter` waits for it, and these files must change:
//  - the request's field: parse_engine_fields() (server/api/base/sampling_fields.cpp);
//  - `adapter` is filled in server/jobs/preparation.cpp, where pictures are kept by salt, and in api_prefixes.cpp and
//    api_cache.cpp (server/api);
//  - rows know theirs: a field of BatchSequence (executor/executor.h), filled in engine/batch_builder.cpp; on a GPU
//    executor/cuda/step_memory.cpp;
//  - weights: model/, executor/ggml/store/weights.cpp, executor/cuda/device_weights.cpp;
//  - products: product.cpp, packed_product.cpp, gated_product.cpp and packed_experts.cpp (executor/ggml/graph);
//    decoder_step.cpp and experts_step.cpp (executor/cuda);
//  - which graph may run again: StepShape (executor/ggml/graph/step_graph.h), graph_of()
//    (executor/cuda/step_launcher.cpp);
//  - what an executor has: ExecutorInfo, executor/base/batch_check.cpp.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>

namespace coppice::kv {

/// Different namespaces never share. Whoever keeps something by namespace uses it whole.
struct Namespace {
  /// What a key's own salt begins with, which no text has, and how long it is.
  static constexpr char kOwnerMark = '\xff';
  static constexpr std::size_t kOwnerBytes = 33;

  std::string salt;     ///< cache_salt of the request, added to the API key's own
  std::string adapter;  ///< LoRA and rope overrides; empty: none

  /// The API key's own salt, where keys are kept apart; else empty.
  std::string_view owner() const {
    const bool is_owned = salt.size() >= kOwnerBytes && salt.front() == kOwnerMark;
    return std::string_view(salt).substr(0, is_owned ? kOwnerBytes : 0);
  }
  friend auto operator<=>(const Namespace&, const Namespace&) = default;
};

}  // namespace coppice::kv
