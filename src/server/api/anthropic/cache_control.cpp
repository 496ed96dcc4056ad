#include "server/api/anthropic/cache_control.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "server/base/request_error.h"

namespace coppice::server {

namespace {

using namespace std::chrono_literals;

/// {"type": "ephemeral", "ttl": "5m" | "1h"}
std::optional<engine::PinWish> parse_cache_control(const JsonFields& f) {
  const Json* value = f.find("cache_control");
  if (value == nullptr) return std::nullopt;
  const std::string path = f.path("cache_control");
  const JsonFields control(object_of(value, path), path + ".");
  if (control.required_string("type") != "ephemeral")
    throw RequestError::bad_field(control.path("type"), "must be \"ephemeral\"");
  const std::string ttl = control.string("ttl").value_or("5m");
  if (ttl != "5m" && ttl != "1h") throw RequestError::bad_field(control.path("ttl"), "must be \"5m\" or \"1h\"");
  return engine::PinWish{.ttl = ttl == "5m" ? std::chrono::seconds(5min) : std::chrono::seconds(1h)};
}

}  // namespace

void PinMarks::look(const JsonFields& f, PinMark place) {
  const auto wish = parse_cache_control(f);
  if (!wish) return;
  if (marks_.size() == kMost)
    throw RequestError::bad_field(f.path("cache_control"), fmt::format("is there more than {} times", kMost));
  place.wish = *wish;
  marks_.push_back(std::move(place));
}

void PinMarks::place(std::size_t from, std::size_t messages, bool behind) {
  for (PinMark& mark : std::span(marks_).subspan(from)) {
    if (mark.messages != PinMark::kAll) continue;
    mark.messages = messages;
    if (behind) mark.parts = mark.calls = PinMark::kAll;
  }
}

CacheCreation cache_creation(std::span<const engine::PinOutcome> pins, int cached_tokens) {
  CacheCreation sum;
  int counted = cached_tokens;
  for (const engine::PinOutcome& pin : pins) {  // the shortest first
    if (!pin.prefix) continue;
    (pin.asked_ttl < 1h ? sum.five_minutes : sum.one_hour) += std::max(pin.prefix->pinned_tokens - counted, 0);
    counted = std::max(counted, pin.prefix->pinned_tokens);
  }
  return sum;
}

}  // namespace coppice::server
