// Routes that tell what the server is and does: its health, model, figures.
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/api.h"
#include "server/api/server_info.h"
#include "server/api/tokenize.h"
#include "server/http/http_head.h"
#include "text/utf8_stream.h"
#include "vision/pictures.h"

namespace coppice::server {

namespace asio = boost::asio;

asio::awaitable<void> Api::health(HttpRequest&, ReplyWriter& out) {
  Reply reply;
  if (draining_) {
    reply = {.status = 503, .body = dump({{"status", "draining"}})};
  } else if (!model_) {
    reply = {.status = 503,
             .body = dump({{"status", "loading"}, {"stage", loading_.stage()}, {"progress", loading_.fraction()}})};
  } else {
    reply.body = dump(JsonObject{{"status", "ok"}});
  }
  if (reply.status != 200) reply.headers.emplace_back("Retry-After", "1");
  co_await out.send(std::move(reply));
}

asio::awaitable<void> Api::live(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = dump(JsonObject{{"status", "alive"}})});
}

asio::awaitable<void> Api::version(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = dump(JsonObject{{"version", config_.version}})});
}

asio::awaitable<void> Api::models(HttpRequest& request, ReplyWriter& out) {
  const ModelFacts* facts = model_ ? &model_->facts() : nullptr;
  std::string_view path = request.path;
  if (path.ends_with('/')) path.remove_suffix(1);
  if (path.size() <= std::string_view(kModelPath).size() || !path.starts_with(kModelPath))
    co_return co_await out.send({.body = models_json(config_.names, started_, facts)});
  const std::string name = percent_decoded(path.substr(std::string_view(kModelPath).size()));
  if (!config_.names.known(name)) throw unknown_model(text::to_utf8(name), config_.names);
  co_await out.send({.body = dump(model_json(name, config_.names.id, started_, facts))});
}

asio::awaitable<void> Api::props(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = props_json(config_, ready_model().facts(), model_->snapshot().asleep)});
}

asio::awaitable<void> Api::slots(HttpRequest&, ReplyWriter& out) {
  if (!config_.serves_slots) throw RequestError(501, "This server's operator has switched /slots off.", "", "no_slots");
  const Model& model = ready_model();
  co_await out.send({.body = slots_json(model.facts(), model.snapshot())});
}

asio::awaitable<void> Api::sglang_model_info(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = sglang_model_info_json(config_)});
}

asio::awaitable<void> Api::sglang_server_info(HttpRequest&, ReplyWriter& out) {
  const Model& model = ready_model();
  co_await out.send({.body = sglang_server_info_json(config_, model.facts(), model.snapshot())});
}

asio::awaitable<void> Api::tokenizer_info(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = tokenizer_info_json(ready_model().facts())});
}

asio::awaitable<void> Api::metrics(HttpRequest&, ReplyWriter& out) {
  std::optional<engine::Snapshot> snapshot;
  if (model_) snapshot = model_->snapshot();
  const vision::Pictures* pictures = model_ ? model_->pictures() : nullptr;
  Reply reply{.body = metrics_.scrape(snapshot ? &*snapshot : nullptr, http_figures_(), responses_.figures(),
                                      pictures != nullptr ? pictures->figures() : vision::PictureFigures(),
                                      config_.names.id)};
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  co_await out.send(std::move(reply));
}

asio::awaitable<void> Api::cache_stats(HttpRequest&, ReplyWriter& out) {
  if (!model_) ready_model();  // throws; while draining the figures are still of interest
  co_await out.send({.body = cache_stats_json(model_->snapshot(), model_->facts(), config_.names.id)});
}

}  // namespace coppice::server
