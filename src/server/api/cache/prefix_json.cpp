#include "server/api/cache/prefix_json.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <utility>

namespace coppice::server {

namespace {

using std::chrono::steady_clock, std::chrono::system_clock;

/// In seconds since 1970. The same for the same time, whenever it is asked for.
std::int64_t unix_seconds(steady_clock::time_point time) {
  static const auto start = steady_clock::now();
  static const auto system_start = system_clock::now();
  return std::chrono::ceil<std::chrono::seconds>((system_start + (time - start)).time_since_epoch()).count();
}

}  // namespace

JsonObject prefix_json(const engine::PrefixInfo& prefix) {
  return {{"id", prefix.id},
          {"object", "cache.prefix"},
          {"name", prefix.name},
          {"source", prefix.object ? "prefixes" : "cache_control"},
          {"tokens", prefix.tokens},
          {"pinned_tokens", prefix.pinned_tokens},
          {"blocks", prefix.blocks},
          {"hits", prefix.hits},
          {"saved_tokens", prefix.saved_tokens},
          {"ttl", prefix.ttl.count()},
          {"created_at", unix_seconds(prefix.since)},
          {"expires_at", unix_seconds(prefix.expires)}};
}

std::string prefix_list_json(const engine::PrefixAnswer& answer) {
  JsonArray data;
  for (const engine::PrefixInfo& prefix : answer.prefixes) data.push_back(prefix_json(prefix));
  return dump(JsonObject{{"object", "list"}, {"data", std::move(data)}});
}

std::string cache_reset_json(const engine::PrefixAnswer& answer) {
  return dump(JsonObject{
      {"object", "cache.reset"}, {"prefixes", answer.ended}, {"blocks", answer.blocks}, {"tokens", answer.tokens}});
}

RequestError pin_error(const engine::PinOutcome& refused, bool share) {
  if (!share) return RequestError::unsupported("", "this server runs without sharing: nothing can be pinned");
  constexpr const char* kHint = "Delete one, wait until one ends, or raise";
  const auto beyond = [&](const char* whose, const char* option) {
    return RequestError(
        409,
        fmt::format("With this prefix {} would hold {} blocks of the cache, and they may hold {}. {} {}.", whose,
                    refused.needed, refused.most, kHint, option),
        "", "pin_share_exhausted");
  };
  switch (refused.refusal) {
    case engine::PinRefusal::kTooShort:
      return {400, "The prefix is shorter than a block of the cache: there is nothing to pin.", "", "prefix_too_short"};
    case engine::PinRefusal::kOwnersShare:
      return beyond("this key's pinned prefixes", "--pin-share-of-key or --kv-bytes");
    case engine::PinRefusal::kShare:
      return beyond("all pinned prefixes together", "--pin-share or --kv-bytes");
    case engine::PinRefusal::kPromised:
      return {
          409,
          fmt::format("The prefix takes {} blocks of the cache, and all but {} are promised to running requests: try "
                      "again when fewer run.",
                      refused.needed, refused.most),
          "", "pin_no_room"};
    case engine::PinRefusal::kTooMany:
      return {409, "There are too many pinned prefixes: delete one, or wait until one ends.", "",
              "pin_share_exhausted"};
    case engine::PinRefusal::kRevoked:
      return {403, "The key of this request is no longer valid.", "", "revoked"};
    case engine::PinRefusal::kNoMemory:
      break;
  }
  return RequestError::unavailable("The server has too little memory to pin a prefix: try again later.");
}

}  // namespace coppice::server
