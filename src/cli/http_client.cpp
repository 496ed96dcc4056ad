#include "cli/http_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <charconv>

namespace coppice::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

/// One connection for one exchange.
struct Connection {
  asio::io_context context;
  asio::ip::tcp::socket socket{context};

  explicit Connection(const Endpoint& server) {
    asio::ip::tcp::resolver resolver(context);
    asio::connect(socket, resolver.resolve(server.host, std::to_string(server.port)));
    socket.set_option(asio::ip::tcp::no_delay(true));
  }
};

std::string host_header(const Endpoint& server) {
  return fmt::format("{}:{}", server.host, server.port);
}

/// The message of an OpenAI error body, or the body's beginning.
std::string error_text(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object()) {
    return json["error"].value("message", std::string());
  }
  return body.substr(0, 200);
}

http::response<http::string_body> get(const Endpoint& server, const std::string& path) {
  Connection connection(server);
  http::request<http::empty_body> request(http::verb::get, path, 11);
  request.set(http::field::host, host_header(server));
  request.set(http::field::connection, "close");
  http::write(connection.socket, request);
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  http::read(connection.socket, buffer, response);
  return response;
}

/// Cuts a byte stream into server-sent events. Invariant: `pending_` holds the beginning of one event at
/// most.
class EventSplitter {
 public:
  explicit EventSplitter(const std::function<void(const nlohmann::json&)>& on_event) : on_event_(on_event) {}

  void feed(std::string_view bytes) {
    pending_.append(bytes);
    std::size_t begin = 0;
    for (std::size_t end; (end = pending_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(std::string_view(pending_).substr(begin, end - begin));
    }
    pending_.erase(0, begin);
  }

  bool done() const { return done_; }

 private:
  void line(std::string_view text) {
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (!text.starts_with("data:")) return;
    text.remove_prefix(5);
    if (text.starts_with(' ')) text.remove_prefix(1);
    if (text == "[DONE]") {
      done_ = true;
      return;
    }
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_discarded()) throw HttpFailure("the server sent an event that is not JSON");
    if (json.contains("error")) throw HttpFailure("the server reports: " + error_text(json.dump()));
    on_event_(json);
  }

  const std::function<void(const nlohmann::json&)>& on_event_;
  std::string pending_;
  bool done_ = false;
};

}  // namespace

Endpoint parse_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto fail = [&] { return HttpFailure(fmt::format("'{}' is not of the form http://host:port", url)); };
  if (!url.starts_with(kScheme)) throw fail();
  std::string_view rest = url.substr(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos || colon == 0) throw fail();
  Endpoint server{std::string(rest.substr(0, colon)), 0};
  const std::string_view port = rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), server.port);
  if (error != std::errc() || end != port.data() + port.size() || server.port == 0) throw fail();
  return server;
}

int http_status(const Endpoint& server, const std::string& path) {
  try {
    return static_cast<int>(get(server, path).result_int());
  } catch (const boost::system::system_error&) {
    return 0;
  }
}

nlohmann::json http_get_json(const Endpoint& server, const std::string& path) try {
  const auto response = get(server, path);
  if (response.result() != http::status::ok) {
    throw HttpFailure(fmt::format("GET {} answered {}: {}", path, response.result_int(), error_text(response.body())));
  }
  auto json = nlohmann::json::parse(response.body(), nullptr, false);
  if (json.is_discarded()) throw HttpFailure(fmt::format("GET {} did not answer with JSON", path));
  return json;
} catch (const boost::system::system_error& error) {
  throw HttpFailure(fmt::format("GET {} failed: {}", path, error.code().message()));
}

void http_post_stream(const Endpoint& server, const std::string& path, const nlohmann::json& body,
                      const std::function<void(const nlohmann::json&)>& on_event) try {
  Connection connection(server);
  http::request<http::string_body> request(http::verb::post, path, 11);
  request.set(http::field::host, host_header(server));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = body.dump();
  request.prepare_payload();
  http::write(connection.socket, request);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(boost::none);
  http::read_header(connection.socket, buffer, parser);
  const bool ok = parser.get().result() == http::status::ok;

  EventSplitter events(on_event);
  std::string error_body;
  std::array<char, 16384> piece{};
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    boost::system::error_code error;
    http::read_some(connection.socket, buffer, parser, error);
    if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
    const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
    if (ok) {
      events.feed(bytes);
    } else {
      error_body.append(bytes);
    }
  }
  if (!ok) {
    throw HttpFailure(fmt::format("POST {} answered {}: {}", path, parser.get().result_int(), error_text(error_body)));
  }
  if (!events.done()) throw HttpFailure("the server closed the stream before its end");
} catch (const boost::system::system_error& error) {
  throw HttpFailure(fmt::format("POST {} failed: {}", path, error.code().message()));
}

}  // namespace coppice::cli
