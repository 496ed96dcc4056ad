#include "server/api/server_info.h"

#include <fmt/format.h>

#include <ctime>
#include <utility>
#include <vector>

#include "server/api/llama/llama_dialect.h"

namespace coppice::server {

namespace {

/// "2026-11-27T05:00:00Z"
std::string rfc3339(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

JsonObject model_json(const std::string& id, const std::string& root, std::int64_t created, const ModelFacts* facts) {
  JsonObject json = {{"id", id},
                     {"object", "model"},
                     {"created", created},
                     {"owned_by", "coppice"},
                     {"root", root},
                     {"type", "model"},
                     {"display_name", id},
                     {"created_at", rfc3339(created)},
                     {"lifecycle", "active"}};
  if (facts != nullptr) {
    json["max_model_len"] = facts->context_length;
    json["max_input_tokens"] = facts->context_length - 1;  // the last is for an answer
    json["max_tokens"] = facts->context_length - 1;
    JsonArray inputs = {"text"};
    if (facts->most_pictures > 0) inputs.emplace_back("image");
    json["architecture"] =
        JsonObject{{"input_modalities", std::move(inputs)}, {"output_modalities", JsonArray{"text"}}};
  }
  return json;
}

std::string models_json(const ServedNames& names, std::int64_t created, const ModelFacts* facts) {
  const std::vector<std::string> listed = names.list();
  JsonArray data;
  for (const std::string& name : listed) data.push_back(model_json(name, names.id, created, facts));
  return dump(JsonObject{{"object", "list"},
                         {"data", std::move(data)},
                         {"first_id", listed.front()},
                         {"last_id", listed.back()},
                         {"has_more", false}});
}

std::string props_json(const ApiConfig& config, const ModelFacts& facts, bool asleep) {
  GenerationRequest plain = llama_defaults(config.defaults);
  JsonObject settings = {{"n_ctx", facts.context_length},
                         {"params", llama_settings(plain, plain.sampling, facts.context_length)}};
  return dump(JsonObject{{"default_generation_settings", std::move(settings)},
                         {"total_slots", facts.max_batch},
                         {"model_path", config.model_path},
                         {"model_alias", config.names.id},
                         {"modalities", JsonObject{{"vision", facts.most_pictures > 0}, {"audio", false}}},
                         {"media_marker", kPublicMarker},
                         {"chat_template", facts.chat_template},
                         {"bos_token", facts.bos},
                         {"eos_token", facts.eos},
                         {"build_info", "coppice " + config.version},
                         {"is_sleeping", asleep}});
}

std::string slots_json(const ModelFacts& facts, const engine::Snapshot& snapshot) {
  JsonArray slots;
  for (int i = 0; i < facts.max_batch; ++i)
    slots.push_back(JsonObject{{"id", i},
                               {"n_ctx", facts.context_length},
                               {"speculative", false},
                               {"is_processing", i < snapshot.running_sequences}});
  return dump(std::move(slots));
}

// The path is the served name: a router asks for tokenizers and chats by it, and a file's place is nobody's business.
std::string sglang_model_info_json(const ApiConfig& config) {
  return dump(
      JsonObject{{"model_path", config.names.id}, {"tokenizer_path", config.names.id}, {"is_generation", true}});
}

std::string sglang_server_info_json(const ApiConfig& config, const ModelFacts& facts,
                                    const engine::Snapshot& snapshot) {
  const kv::CacheStats& cache = snapshot.cache;
  return dump(JsonObject{{"model_id", config.names.id},
                         {"model_path", config.names.id},
                         {"served_model_name", config.names.id},
                         {"version", "coppice " + config.version},
                         {"dp_size", 1},
                         {"tp_size", 1},
                         {"page_size", cache.block_size},
                         {"max_total_tokens", cache.total * cache.block_size},
                         {"max_running_requests", facts.max_batch},
                         {"max_batch_size", facts.max_batch},
                         {"context_length", facts.context_length}});
}

std::string tokenizer_info_json(const ModelFacts& facts) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  return dump(JsonObject{{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"bos_token", or_null(facts.bos)},
                         {"eos_token", or_null(facts.eos)},
                         {"pad_token", or_null(facts.pad.empty() ? facts.eos : facts.pad)},
                         {"add_bos_token", facts.adds_bos},
                         {"add_eos_token", facts.adds_eos},
                         {"vocab_size", facts.n_vocab},
                         {"model_max_length", facts.context_length},
                         {"clean_up_tokenization_spaces", false},
                         {"chat_template", or_null(facts.chat_template)}});
}

RequestError unknown_model(const std::string& name, const ServedNames& names) {
  return {
      404,
      fmt::format("The model '{}' does not exist; this server has '{}'. Started with --alias '*', it takes any name.",
                  name, names.id),
      "model", "model_not_found"};
}

std::string fingerprint(const ApiConfig& config, const ModelFacts& facts) {
  const std::string all = fmt::format("{}|{}|{}|{}|{}|{}", config.version, config.names.id, config.model_path,
                                      facts.attention, facts.kv_format, facts.n_vocab);
  std::uint32_t hash = 0x811c9dc5;  // FNV-1a: it need not be hard to forge
  for (const char c : all) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193U;
  return fmt::format("b{}-{:08x}", config.version, hash);
}

}  // namespace coppice::server
