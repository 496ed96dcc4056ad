#include "server/api/embeddings/embedding_dialect.h"

#include <fmt/format.h>

#include <limits>
#include <utility>

#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/llama/llama_dialect.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/openai/prompt_list.h"

namespace coppice::server {

namespace {

/// Of other servers; they change the embedding, or how it comes.
constexpr UnbuiltField kUnbuiltEmbedding[] = {
    {"stream"}, {"messages"}, {"input_type"}, {.name = "normalize", .off = 1}, {"embed_dtype"}, {"endianness"},
};

bool parse_base64(const JsonFields& f) {
  const std::string format = f.string("encoding_format").value_or("float");
  if (format != "float" && format != "base64")
    throw RequestError::bad_field("encoding_format", "must be \"float\" or \"base64\"");
  return format == "base64";
}

void check_dimensions(const JsonFields& f, int n_embd) {
  const auto dimensions = f.integer("dimensions", 1, std::numeric_limits<std::int32_t>::max());
  if (dimensions && *dimensions != n_embd)
    throw RequestError::unsupported("dimensions",
                                    fmt::format("only {}, the model's own: a part of an embedding means something "
                                                "only where a model was trained for that",
                                                n_embd));
}

}  // namespace

GenerationRequest EmbeddingDialect::parse(const JsonObject& body, const RequestLimits& limits) const {
  if (limits.n_embd == 0)
    throw RequestError(501, "This server gives no embeddings: its executor has no hidden states.", "", "no_embeddings");
  const JsonFields f(body);
  refuse_unbuilt(f, kUnbuiltEmbedding);
  GenerationRequest r;
  r.embed = true;
  r.max_tokens = 0;
  r.model = f.string("model").value_or("");
  const bool content = !f.has("input") && f.has("content");
  r.input_field = content ? "content" : "input";
  const Json* input = f.find(r.input_field.c_str());
  if (input == nullptr) throw RequestError::bad_field("input", "is required", "missing_field");
  r.prompts = parse_prompt_list(*input, r.input_field, limits);
  r.add_special = f.boolean("add_special_tokens").value_or(true);
  EmbeddingTerms terms{.form = content ? EmbeddingForm::kLlama : form_, .base64 = parse_base64(f)};
  terms.norm = static_cast<int>(f.integer("embd_normalize", -1, kMostNorm).value_or(terms.norm));
  check_dimensions(f, limits.n_embd);
  parse_truncation(f, r);
  parse_engine_fields(f, r);
  if (r.cache_report && terms.form == EmbeddingForm::kLlama)
    throw RequestError::unsupported("cache_report", "only /v1/embeddings has a place for it");
  f.string("user");  // a label for abuse reports: its type is checked, its value has no use here
  r.own = std::make_shared<const EmbeddingTerms>(terms);
  return r;
}

std::unique_ptr<Answer> EmbeddingDialect::begin(const GenerationTerms& terms, const sampling::SamplingParams&,
                                                AnswerHead head) const {
  return std::make_unique<EmbeddingAnswer>(*std::static_pointer_cast<const EmbeddingTerms>(terms.own), std::move(head));
}

std::string EmbeddingDialect::error(const RequestError& error) const {
  return form_ == EmbeddingForm::kOpenAi ? openai_error(error) : llama_error(error);
}

std::string rerank_reply(const Model&, std::string_view) {
  throw RequestError(501,
                     "This model does not rank: that needs a classification head, which no model that this server "
                     "can load has.",
                     "", "no_reranking");
}

}  // namespace coppice::server
