// Api's routes to stored responses.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "server/api/api.h"
#include "server/api/responses/responses_request.h"
#include "server/http/http_head.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr int kMostItems = 100, kUsualItems = 20;

/// Of "/v1/responses/{id}", "/responses/{id}", and what is below.
std::string id_of(const HttpRequest& request) {
  return path_segment(request.path, request.path.starts_with("/v1/") ? 2 : 1);
}

ResponseOwner owner_of(const HttpRequest& request) {
  return {.tenant = request.tenant, .salt = salt_of(request)};
}

/// The same for what is not there and for what is somebody else's.
RequestError no_response(const std::string& id) {
  return {404, fmt::format("Response with id '{}' not found.", text::to_utf8(id)), "id", "response_not_found"};
}

std::string joined(const auto& items) {
  std::string list;
  for (const ConversationItem& item : items) list += (list.empty() ? "" : ",") + item.json;
  return list;
}

struct Page {
  std::size_t limit = kUsualItems;
  bool newest_first = true;
  std::string after;  ///< the id of the item before it; empty: it is the first
};

Page page_of(std::string_view query) {
  Page page;
  if (const auto limit = query_value(query, "limit")) {
    const char* const end = limit->data() + limit->size();
    const auto [stop, error] = std::from_chars(limit->data(), end, page.limit);
    if (error != std::errc() || stop != end || page.limit < 1 || page.limit > kMostItems)
      throw RequestError::bad_field("limit", fmt::format("must be between 1 and {}", kMostItems));
  }
  const std::string order = query_value(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") throw RequestError::bad_field("order", "must be \"asc\" or \"desc\"");
  page.newest_first = order == "desc";
  page.after = query_value(query, "after").value_or("");
  return page;
}

/// What the response answers: all turns before its own, and its request's items.
std::vector<std::reference_wrapper<const ConversationItem>> input_of(const StoredResponse& response) {
  std::vector<std::reference_wrapper<const ConversationItem>> items;
  for (const StoredResponse* turn : conversation(response)) {
    items.insert(items.end(), turn->input.begin(), turn->input.end());
    if (turn != &response) items.insert(items.end(), turn->output.begin(), turn->output.end());
  }
  return items;
}

std::size_t size_of(const auto& items) {
  std::size_t bytes = 0;
  for (const ConversationItem& item : items) bytes += item.json.size() + 1;
  return bytes;
}

struct Items {
  std::vector<std::reference_wrapper<const ConversationItem>> shown;
  bool more = false;
};

/// Throws RequestError.
Items items_of(const StoredResponse& response, const Page& page) {
  auto items = input_of(response);
  if (page.newest_first) std::ranges::reverse(items);
  auto from = items.begin();
  if (!page.after.empty()) {
    from = std::ranges::find(items, page.after, [](const ConversationItem& item) { return item.id; });
    if (from == items.end())
      throw RequestError::bad_field("after", fmt::format("there is no item '{}'", text::to_utf8(page.after)));
    ++from;
  }
  const bool more = std::cmp_greater(items.end() - from, page.limit);
  return {.shown = {from, more ? from + static_cast<std::ptrdiff_t>(page.limit) : items.end()}, .more = more};
}

std::string items_json(const Items& items) {
  const auto& [shown, more] = items;
  const auto id = [&](bool last) {
    if (shown.empty()) return std::string("null");
    return dump(Json((last ? shown.back() : shown.front()).get().id));
  };
  return fmt::format(R"({{"object":"list","data":[{}],"first_id":{},"last_id":{},"has_more":{}}})", joined(shown),
                     id(false), id(true), more);
}

}  // namespace

std::shared_ptr<const StoredResponse> Api::stored_response(const HttpRequest& request) {
  const std::string id = id_of(request);
  auto response = responses_.find(id, owner_of(request));
  if (!response) throw no_response(id);
  return response;
}

asio::awaitable<void> Api::get_response(HttpRequest& request, ReplyWriter& out) {
  if (query_value(request.query, "stream").value_or("false") != "false")
    throw RequestError::unsupported("stream", "a stored response is not told again as a stream");
  const auto response = stored_response(request);
  out.reserve(response->body.size() + size_of(response->output));
  const auto make = [&] {
    std::string body = response->body;
    body.pop_back();  // the object's end
    return body += fmt::format(R"(,"output":[{}]}})", joined(response->output));
  };
  co_await send_made(make, out);
}

asio::awaitable<void> Api::response_input(HttpRequest& request, ReplyWriter& out) {
  const Page page = page_of(request.query);
  const auto response = stored_response(request);
  Items items;  // of a long conversation they take a moment to find
  co_await viewing_.run({}, 0, [&] {
    items = items_of(*response, page);
    return true;
  });
  out.reserve(size_of(items.shown));
  co_await send_made([&] { return items_json(items); }, out);
}

asio::awaitable<void> Api::count_response_input(HttpRequest& request, ReplyWriter& out) {
  const Model& model = ready_model();
  co_await send_converted(request, [&] { return response_count_reply(model, request, responses_); }, out);
}

asio::awaitable<void> Api::delete_response(HttpRequest& request, ReplyWriter& out) {
  const std::string id = id_of(request);
  if (!responses_.remove(id, owner_of(request))) throw no_response(id);
  co_await out.send({.body = dump({{"id", id}, {"object", "response"}, {"deleted", true}})});
}

}  // namespace coppice::server
