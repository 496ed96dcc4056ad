#include "server/api/base/cache_report_json.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace coppice::server {

namespace {

struct Words {
  const char* name;
  const char* why;
};

Words words_for(engine::MatchEnded ended) {
  switch (ended) {
    case engine::MatchEnded::kLastToken:
      return {"last_token", "All of the prompt was cached; its last token is always computed."};
    case engine::MatchEnded::kDiffers:
      return {"differs", "The cached text goes on differently here."};
    case engine::MatchEnded::kEvicted:
      return {"evicted", "What follows was cached, and was evicted for room: the pool is small for its load."};
    case engine::MatchEnded::kNoState:
      return {"no_state",
              "What follows is cached, but without the state that the model's recurrent layers need to go on there."};
    case engine::MatchEnded::kInFlight:
      return {"in_flight", "Another request was still computing what follows, in a block that was not full yet."};
    case engine::MatchEnded::kUnknown:
      return {"unknown", "What follows was never computed, or was evicted and is forgotten."};
    case engine::MatchEnded::kNamespace:
      return {"namespace", "Nothing was cached under this cache_salt (and API key, where keys are kept apart)."};
    case engine::MatchEnded::kSharingOff:
      return {"sharing_off", "The server runs with --share off."};
    case engine::MatchEnded::kScored:
      return {"logprobs",
              "The next token is computed in any case: the log-probability of the one behind it is wanted."};
    case engine::MatchEnded::kPooled:
      return {"pooled", "All of the prompt is computed: its embedding is the mean of all its tokens."};
    case engine::MatchEnded::kNotAsked:
      return {"not_asked", "The request has 'cache_prompt': false."};
  }
  return {"unknown", ""};
}

}  // namespace

std::string shown_text(const Model& model, kv::TextView shown) {
  std::string text;
  std::vector<kv::Token> tokens;
  bool medium = false;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto token = shown[i].token();
    if (!token && !medium) {
      text += model.detokenize(std::exchange(tokens, {}), true);
      text += "[medium]";
    }
    if (token) tokens.push_back(*token);
    medium = !token;
  }
  return text + model.detokenize(tokens, true);
}

JsonObject cache_report_json(const engine::CacheReport& report, const Model& model, CacheReports how) {
  const auto text = [&](kv::TextView shown) { return shown_text(model, shown); };
  const auto [name, why] = words_for(report.ended);
  JsonObject texts = {{"before", text(report.before)}, {"asked", text(report.asked)}};
  if (report.ended == engine::MatchEnded::kDiffers && how == CacheReports::kText) texts["found"] = text(report.found);
  return {{"prompt_tokens", report.prompt_tokens},
          {"matched_tokens", report.matched_tokens},
          {"ended", name},
          {"why", why},
          {"text", std::move(texts)},
          {"lost_tokens", report.lost_tokens},
          {"lost_seconds", std::round(report.lost_seconds * 1000) / 1000}};
}

Json cache_reports_json(CacheReportList reports, const CacheReporting& reporting) {
  if (!reporting.wanted) return nullptr;
  JsonArray all;
  for (const auto& report : reports) {
    all.push_back(report ? Json(cache_report_json(*report, *reporting.model, reporting.how)) : Json(nullptr));
  }
  return all.size() == 1 ? std::move(all.front()) : Json(std::move(all));
}

void log_cache_report(engine::RequestId id, const engine::CacheReport& report, const Model& model) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug("request {}: {}", id, dump(cache_report_json(report, model, CacheReports::kText)));
}

}  // namespace coppice::server
