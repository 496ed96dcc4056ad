#include "server/api/base/cache_report_json.h"

#include <fmt/format.h>
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
  std::size_t at = 0;
  const auto add_tokens = [&](std::size_t end) {
    text += model.detokenize(shown.subspan(at, end - at).tokens(), true);
  };
  for (const kv::MediumSpan& span : shown.spans()) {
    add_tokens(static_cast<std::size_t>(span.first));
    at = static_cast<std::size_t>(span.end());
    const std::string size = model.pictures() != nullptr ? model.pictures()->size_text(span.medium.digest) : "";
    text += fmt::format("[image{}{}, {} token{}]", size.empty() ? "" : " ", size, span.medium.rows,
                        span.medium.rows == 1 ? "" : "s");
  }
  add_tokens(shown.size());
  return text;
}

namespace {

bool begins_with_image(kv::TextView text) {
  return !text.empty() && !text[0].token();
}

/// Why, where an image ended the match.
std::string images_differ(std::int32_t at, std::span<const PicturePlace> images) {
  for (const PicturePlace& image : images)
    if (image.begin <= at && at < image.end) return fmt::format("The images differ: {}.", image.name);
  return "The images differ.";
}

}  // namespace

JsonObject cache_report_json(const engine::CacheReport& report, const Model& model, CacheReports how,
                             std::span<const PicturePlace> images) {
  const auto text = [&](kv::TextView shown) { return shown_text(model, shown); };
  const auto [name, words] = words_for(report.ended);
  std::string why = words;
  if (report.ended == engine::MatchEnded::kDiffers && begins_with_image(report.asked) &&
      begins_with_image(report.found))
    why = images_differ(report.matched_tokens, images);
  JsonObject texts = {{"before", text(report.before)}, {"asked", text(report.asked)}};
  if (report.ended == engine::MatchEnded::kDiffers && how == CacheReports::kText) texts["found"] = text(report.found);
  JsonObject json = {{"prompt_tokens", report.prompt_tokens},
                     {"matched_tokens", report.matched_tokens},
                     {"ended", name},
                     {"why", why},
                     {"text", std::move(texts)},
                     {"lost_tokens", report.lost_tokens},
                     {"lost_seconds", std::round(report.lost_seconds * 1000) / 1000}};
  if (report.loaded_tokens > 0) {
    json["why"] = fmt::format("{} {} of the matched tokens came from the second tier, in {:.0f} ms.", why,
                              report.loaded_tokens, report.loaded_seconds * 1000);
    json["loaded_tokens"] = report.loaded_tokens;
    json["loaded_seconds"] = std::round(report.loaded_seconds * 1000) / 1000;
  }
  return json;
}

Json cache_reports_json(CacheReportList reports, const CacheReporting& reporting) {
  if (!reporting.wanted) return nullptr;
  JsonArray all;
  for (const auto& report : reports) {
    all.push_back(report ? Json(cache_report_json(*report, *reporting.model, reporting.how, reporting.images))
                         : Json(nullptr));
  }
  return all.size() == 1 ? std::move(all.front()) : Json(std::move(all));
}

void log_cache_report(engine::RequestId id, const engine::CacheReport& report, const Model& model) {
  if (!spdlog::should_log(spdlog::level::debug)) return;
  spdlog::debug("request {}: {}", id, dump(cache_report_json(report, model, CacheReports::kText)));
}

}  // namespace coppice::server
