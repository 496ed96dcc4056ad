#include "server/api/cache/prefix_dialect.h"

#include <chrono>
#include <utility>

#include "server/api/base/json_fields.h"
#include "server/api/base/sampling_fields.h"
#include "server/api/base/tool_fields.h"
#include "server/api/cache/prefix_json.h"
#include "server/api/openai/openai_request.h"

namespace coppice::server {

namespace {

constexpr std::int64_t kUsualSeconds = 3600, kMostSeconds = 30 * 24 * 3600;
constexpr std::size_t kMaxPrefixNameBytes = 256;

void parse_input(const JsonFields& f, const RequestLimits& limits, GenerationRequest& r) {
  if (f.has("messages") + f.has("prompt") + f.has("text") != 1)
    throw RequestError::bad_field("messages", "is required, or 'prompt', or 'text'; and only one of them",
                                  "missing_field");
  if (const Json* messages = f.find("messages")) {
    refuse_unbuilt_fields(f);
    r.messages = parse_messages(*messages, limits.most_pictures);
    r.tools = parse_tools(f);
    r.beginning = true;
    return;
  }
  r.add_special = f.boolean("add_special_tokens").value_or(true);
  if (auto text = f.string("text")) {
    r.input_field = "text";
    r.prompts.emplace_back(*std::move(text));
  } else {
    r.input_field = "prompt";
    r.prompts = parse_prompts(f, limits);
    if (r.prompts.size() != 1) throw RequestError::bad_field("prompt", "must be one prompt");
  }
}

}  // namespace

GenerationRequest parse_prefix_request(const JsonObject& body, const RequestLimits& limits) {
  const JsonFields f(body);
  GenerationRequest r;
  r.model = f.string("model").value_or("");
  parse_input(f, limits, r);
  parse_engine_fields(f, r);
  const auto ttl = std::chrono::seconds(f.integer("ttl", 1, kMostSeconds).value_or(kUsualSeconds));
  std::string name = f.string("name").value_or("");
  if (name.size() > kMaxPrefixNameBytes) throw RequestError::bad_field("name", "must be at most 256 bytes");
  r.pins.push_back({.whole = true, .wish = {.ttl = ttl, .object = true, .name = std::move(name)}});
  r.max_tokens = 0;
  return r;
}

std::string PrefixBody::end(const engine::Usage& usage, CacheReportList reports) {
  const bool share = head_.reporting.model == nullptr || head_.reporting.model->facts().share;
  if (usage.pins.empty()) throw pin_error({.refusal = engine::PinRefusal::kNoMemory}, share);
  const engine::PinOutcome& outcome = usage.pins.front();
  if (!outcome.prefix) throw pin_error(outcome, share);
  JsonObject json = prefix_json(*outcome.prefix);
  json["cached_tokens"] = usage.cached_tokens;
  if (Json report = cache_reports_json(reports, head_.reporting); !report.is_null())
    json["cache_report"] = std::move(report);
  return dump(std::move(json));
}

}  // namespace coppice::server
