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

class Libllama {
 public:
  /// KV f16 or f32, one sequence, batches of 512. Throws std::runtime_error.
  Libllama(const std::string& path, bool flash_attention, int n_threads, bool f32_cache = false);
  ~Libllama();

  std::vector<kv::Token> tokenize(const std::string& text) const;
  void clear();
  /// Appends tokens and returns the last `n_last` rows of logits.
  std::vector<std::vector<float>> feed(std::span<const kv::Token> tokens, int n_last);

 private:
  std::unique_ptr<llama_model, void (*)(llama_model*)> model_;
  std::unique_ptr<llama_context, void (*)(llama_context*)> context_;
  int position_ = 0;
};

}  // namespace coppice::test
