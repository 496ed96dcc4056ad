#include "server/api/embeddings/embedding_answer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "server/api/base/cache_report_json.h"
#include "server/api/openai/openai_answer.h"

namespace coppice::server {

namespace {

/// sum(|x|^p)^(1/p), and what stands in its place.
double norm_of(std::span<const float> x, int p) {
  if (p < 0) return 1;
  double sum = 0;
  for (const float value : x) {
    const double size = std::abs(double{value});
    sum = p == 0 ? std::max(sum, size) : sum + std::pow(size, p);
  }
  constexpr double kLargest = 32760;  // so that whole numbers of 16 bits hold them
  return p == 0 ? sum / kLargest : std::pow(sum, 1.0 / p);
}

}  // namespace

std::vector<float> normalised(std::span<const float> x, int p) {
  const double norm = norm_of(x, p);
  const auto is_number = [](float value) { return std::isfinite(value); };
  if (!std::ranges::all_of(x, is_number) || !std::isfinite(norm))
    throw RequestError::server_error(500, "The model failed: an embedding holds no numbers.", "model_failed");
  std::vector<float> y;
  y.reserve(x.size());
  for (const float value : x) y.push_back(norm > 0 ? static_cast<float>(value / norm) : 0.0F);
  return y;
}

std::string base64(std::span<const float> x) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = std::as_bytes(x);
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // EVP_EncodeBlock ends with a zero
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(n));
  return text;
}

EmbeddingAnswer::EmbeddingAnswer(EmbeddingTerms terms, AnswerHead head)
    : terms_(terms), head_(std::move(head)), embeddings_(static_cast<std::size_t>(head_.n_prompts)) {}

std::string EmbeddingAnswer::delta(Delta&& delta) {
  if (delta.embedding.empty()) return {};
  const std::vector<float> x = normalised(delta.embedding, terms_.norm);
  std::string& json = embeddings_[static_cast<std::size_t>(delta.choice)];
  json = terms_.base64 ? fmt::format("\"{}\"", base64(x)) : fmt::format("[{}]", fmt::join(x, ","));
  bytes_ += json.size();
  return {};
}

std::string EmbeddingAnswer::end(const engine::Usage& usage, CacheReportList reports) {
  const bool openai = terms_.form == EmbeddingForm::kOpenAi;
  std::string list;
  for (std::size_t i = 0; i < embeddings_.size(); ++i) {
    list += i == 0 ? "" : ",";
    list += openai ? fmt::format("{{\"object\":\"embedding\",\"index\":{},\"embedding\":{}}}", i, embeddings_[i])
                   : fmt::format("{{\"index\":{},\"embedding\":[{}]}}", i, embeddings_[i]);
    embeddings_[i] = {};
  }
  if (!openai) return "[" + list + "]";
  JsonObject rest = {{"model", head_.model}, {"usage", usage_json(usage)}};
  rest["usage"].as_object().stable_erase("completion_tokens");
  if (head_.reporting.wanted) rest["cache_report"] = cache_reports_json(reports, head_.reporting);
  return fmt::format("{{\"object\":\"list\",\"data\":[{}],{}", list, dump(std::move(rest)).substr(1));
}

}  // namespace coppice::server
