// Which web pages may read replies, and that a browser's question needs no key.
#include "server/api/cors.h"

#include <gtest/gtest.h>

#include <string>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

class CorsTest : public ServerTest {
 protected:
  static server::ServerConfig with(const std::string& origins) {
    server::ServerConfig c = config();
    c.api.cors_origins = origins;
    c.api.api_keys = {"secret"};
    return c;
  }
  HttpAnswer ask_from(const std::string& origin, const std::string& more = "") {
    return exchange("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: " + origin +
                    "\r\nAccess-Control-Request-Method: POST\r\n" + more + "\r\n");
  }
};

TEST(Cors, KnowsItsOrigins) {
  const auto allowed = [](const char* origins, const char* origin) {
    return server::Cors(origins).fields(origin).find("Allow-Origin") != std::string::npos;
  };
  EXPECT_TRUE(allowed("*", "https://a.example"));
  EXPECT_FALSE(allowed("*", "")) << "it is no browser";
  EXPECT_TRUE(allowed("https://b.example,https://a.example", "https://a.example"));
  EXPECT_TRUE(allowed("https://b.example, https://a.example/", "https://a.example"));
  EXPECT_FALSE(allowed("https://b.example", "https://a.example"));
  EXPECT_FALSE(allowed("", "https://a.example"));
  for (const char* local : {"http://localhost", "http://localhost:8080", "https://127.0.0.1:3", "http://[::1]:3000"})
    EXPECT_TRUE(allowed("localhost", local)) << local;
  for (const char* other : {"http://localhost.evil.com", "http://notlocalhost", "http://localhost:80.evil.com",
                            "http://127.0.0.1.evil.com", "null"})
    EXPECT_FALSE(allowed("localhost", other)) << other;
}

TEST_F(CorsTest, ABrowserMayAskWithoutAKey) {
  start(words({"x"}), with("https://a.example"));
  const auto answer = ask_from("https://a.example", "Access-Control-Request-Headers: authorization,content-type\r\n");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(answer.headers.at("access-control-allow-headers"), "authorization,content-type");
  EXPECT_NE(answer.headers.at("access-control-allow-methods").find("POST"), std::string::npos);
  EXPECT_EQ(answer.headers.at("vary"), "Origin");
  const auto other = ask_from("https://b.example");
  EXPECT_FALSE(other.headers.contains("access-control-allow-origin"));
  EXPECT_FALSE(other.headers.contains("access-control-allow-methods"));
  EXPECT_EQ(exchange("OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\n\r\n").status, 401) << "it isn't a browser's question";
}

TEST_F(CorsTest, RepliesOfAllKindsMayBeRead) {
  start(words({"x"}), with("*"));
  const std::string page = "Origin: https://a.example\r\n", key = page + "Authorization: Bearer secret\r\n";
  const auto may_be_read = [&](const std::string& request) {
    const HttpAnswer answer = exchange(request);
    const auto field = answer.headers.find("access-control-allow-origin");
    return field != answer.headers.end() && field->second == "https://a.example" ? answer.status : -answer.status;
  };
  EXPECT_EQ(may_be_read(post_request("/v1/completions", R"({"prompt": "hi"})", key)), 200);
  EXPECT_EQ(may_be_read(post_request("/v1/completions", kStreamBody, key)), 200);
  EXPECT_EQ(may_be_read(post_request("/v1/completions", "{}", key)), 400);
  EXPECT_EQ(may_be_read(post_request("/v1/completions", "{}", page)), 401) << "or the page can't say why";
  EXPECT_EQ(may_be_read(get_request("/v1/models", key)), 200);
  EXPECT_EQ(may_be_read(get_request("/health", page)), 200);
  EXPECT_EQ(may_be_read(get_request("/health")), -200);
}

TEST_F(CorsTest, IsOffByDefault) {
  start(words({"x"}), with(""));
  EXPECT_EQ(ask_from("https://a.example").status, 401);
  const auto answer = exchange(get_request("/health", "Origin: https://a.example\r\n"));
  EXPECT_FALSE(answer.headers.contains("access-control-allow-origin") || answer.headers.contains("vary"));
}

}  // namespace
}  // namespace coppice::testing
