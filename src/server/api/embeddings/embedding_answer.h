// EmbeddingAnswer: the prompts' embeddings, in OpenAI's form or llama-server's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/jobs/answer.h"

namespace coppice::server {

enum class EmbeddingForm : std::uint8_t {
  kOpenAi,  ///< {"object": "list", "data": [{"embedding": [...]}], "usage"}
  kLlama,   ///< [{"index", "embedding": [[...]]}]
};

inline constexpr int kMostNorm = 16;

/// What the answer's form depends on.
struct EmbeddingTerms {
  EmbeddingForm form = EmbeddingForm::kOpenAi;
  bool base64 = false;
  int norm = 2;  ///< normalised()
};

/// x divided by its p-norm: 2 is its length. p = 0: by its largest absolute value, times 32760; -1: as it is. Zeros
/// stay zeros. llama-server's "embd_normalize". Throws RequestError (500) if x holds something that is no number.
std::vector<float> normalised(std::span<const float> x, int p);

/// Of the values as 32-bit floats, the least significant byte first.
std::string base64(std::span<const float> x);

class EmbeddingAnswer final : public Answer {
 public:
  EmbeddingAnswer(EmbeddingTerms terms, AnswerHead head);

  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError&) override { return {}; }  // there are no streams
  std::size_t bytes() const override { return bytes_; }

 private:
  EmbeddingTerms terms_;
  AnswerHead head_;
  std::vector<std::string> embeddings_;  ///< [n_prompts], as JSON
  std::size_t bytes_ = 0;
};

}  // namespace coppice::server
