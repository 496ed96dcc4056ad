#include "cli/http_client.h"

#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <stdexcept>
#include <utility>

namespace coppice::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;

HttpReply exchange(std::uint16_t port, http::request<http::string_body> request,
                   const std::function<void(std::string_view)>& so_far) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::address_v4::loopback(), port});
  request.set(http::field::host, "127.0.0.1");
  request.set(http::field::connection, "close");
  request.prepare_payload();
  http::write(socket, request);

  boost::beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  parser.body_limit(boost::none);
  while (!parser.is_done()) {
    boost::system::error_code error;
    http::read_some(socket, buffer, parser, error);
    // By a signal, of which the caller may know.
    if (error && error != asio::error::interrupted) throw boost::system::system_error(error);
    so_far(parser.get().body());
  }
  return {parser.get().result_int(), std::move(parser.get().body())};
}

}  // namespace

HttpReply http_get(std::uint16_t port, const std::string& path) try {
  return exchange(port, {http::verb::get, path, 11}, [](std::string_view) {});
} catch (const boost::system::system_error&) {
  return {};
}

HttpReply http_post(std::uint16_t port, const std::string& path, const std::string& json,
                    const std::function<void(std::string_view)>& so_far, const std::string& key) try {
  http::request<http::string_body> request(http::verb::post, path, 11, json);
  request.set(http::field::content_type, "application/json");
  if (!key.empty()) request.set(http::field::authorization, "Bearer " + key);
  return exchange(port, std::move(request), so_far);
} catch (const boost::system::system_error& error) {
  throw std::runtime_error("the server broke off: " + error.code().message());
}

}  // namespace coppice::cli
