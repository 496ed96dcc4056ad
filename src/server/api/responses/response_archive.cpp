#include "server/api/responses/response_archive.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstddef>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>

namespace coppice::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kHead = "coppice responses 1\n", kEnd = "end\n";

/// A tenant is no text.
std::string to_hex(std::string_view bytes) {
  std::string digits;
  for (const char byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return digits;
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

json::array archived_items(const std::vector<ConversationItem>& items) {
  json::array all;
  for (const ConversationItem& item : items) all.push_back(json::array{item.id, item.json});
  return all;
}

std::string text_of_json(const json::value& value) {
  return std::string(value.as_string());
}

std::vector<ConversationItem> items_of(const json::value& value) {
  std::vector<ConversationItem> items;
  for (const json::value& item : value.as_array())
    items.push_back({.id = text_of_json(item.at(0)), .json = text_of_json(item.at(1))});
  return items;
}

ArchivedResponse response_of(const json::value& line) {
  ArchivedResponse response{.id = text_of_json(line.at("id")),
                            .owner = {from_hex(line.at("tenant").as_string()), text_of_json(line.at("salt"))},
                            .previous = {},
                            .found = line.at("found").as_bool(),
                            .input = items_of(line.at("input")),
                            .output = items_of(line.at("output")),
                            .body = text_of_json(line.at("body"))};
  if (!line.at("previous").is_null()) response.previous = line.at("previous").to_number<std::size_t>();
  return response;
}

}  // namespace

std::string write_responses(const ResponseStore& store) {
  std::string text(kHead);
  std::unordered_map<const StoredResponse*, std::size_t> written;
  for (const auto& last : store.all()) {
    for (const StoredResponse* turn : conversation(*last)) {
      if (!written.emplace(turn, written.size()).second) continue;
      json::object line = {{"id", turn->id},
                           {"tenant", to_hex(turn->owner.tenant)},
                           {"salt", turn->owner.salt},
                           {"previous", nullptr},
                           {"found", store.holds(turn->id)},
                           {"input", archived_items(turn->input)},
                           {"output", archived_items(turn->output)},
                           {"body", turn->body}};
      if (turn->previous) line["previous"] = written.at(turn->previous.get());
      text += json::serialize(line) + "\n";
    }
  }
  return text.append(kEnd);
}

std::vector<ArchivedResponse> read_responses(std::string_view text) try {
  if (!text.starts_with(kHead) || !text.ends_with(kEnd)) return {};
  text = text.substr(kHead.size(), text.size() - kHead.size() - kEnd.size());
  std::vector<ArchivedResponse> responses;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    responses.push_back(response_of(json::parse(text.substr(0, end))));
    if (const auto before = responses.back().previous; before && *before + 1 >= responses.size()) return {};
    text.remove_prefix(end + 1);
  }
  return responses;
} catch (const std::exception&) {
  return {};
}

std::size_t restore(std::vector<ArchivedResponse> responses, const std::set<std::string>& tenants,
                    ResponseStore& store) {
  std::vector<std::weak_ptr<const StoredResponse>> restored;  // some may go for later ones
  std::vector<std::shared_ptr<const StoredResponse>> deleted;
  std::size_t n_found = 0;
  for (ArchivedResponse& each : responses) {
    std::weak_ptr<const StoredResponse>& place = restored.emplace_back();
    std::shared_ptr<const StoredResponse> previous;
    if (each.previous) previous = restored[*each.previous].lock();
    if (!tenants.contains(each.owner.tenant) || (each.previous && previous == nullptr)) continue;
    const auto response = store.begin(each.owner, previous, std::move(each.input));
    if (response == nullptr || !store.finish(response, each.id, std::move(each.body), std::move(each.output))) continue;
    place = response;
    if (each.found) {
      ++n_found;
    } else {
      store.remove(each.id, each.owner);
      deleted.push_back(response);  // until all that stand on it are there
    }
  }
  return n_found;
}

}  // namespace coppice::server
