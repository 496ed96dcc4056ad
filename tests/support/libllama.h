// Libllama: the independent reference, through its public C API.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kv/types.h"

struct llama_model;
struct llama_context;

namespace coppice::test {

/// Instances for the same path share its weights. Not thread-safe.
class Libllama {
 public:
  enum class Pooling { kNone, kMean, kLast };

  /// KV f16 or f32, one sequence of up to `context` tokens, batches of 512; 2,048 with a pooling, for embed() only.
  /// Throws std::runtime_error.
  Libllama(const std::string& path, bool flash_attention, int n_threads, bool f32_cache = false,
           Pooling pooling = Pooling::kNone, int context = 2048);
  ~Libllama();

  std::vector<kv::Token> tokenize(const std::string& text) const;
  void clear();
  /// Appends tokens and returns the last `n_last` rows of logits.
  std::vector<std::vector<float>> feed(std::span<const kv::Token> tokens, int n_last);
  /// The embedding of at most 2,048 tokens, as it is: of any length.
  std::vector<float> embed(std::span<const kv::Token> tokens);

 private:
  std::shared_ptr<llama_model> model_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_;
  int position_ = 0;
};

}  // namespace coppice::test
