// Without keys: which names and web pages a server serves.
#include "server/api/browser_guard.h"

#include <gtest/gtest.h>

#include <string>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

class BrowserTest : public ServerTest {
 protected:
  static server::ServerConfig with(const std::string& cors, const std::string& hosts = "") {
    server::ServerConfig c = config();
    c.api.cors_origins = cors;
    c.api.hosts += "," + hosts;
    return c;
  }
  /// What a request for `line` with these fields of the head gets.
  int status(const std::string& line, const std::string& fields, const std::string& body = "") {
    return exchange(line + " HTTP/1.1\r\n" + fields + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                    body)
        .status;
  }
};

bool serves(const char* listens_on, const char* names, const char* host) {
  server::HttpRequest request;
  request.host = host;
  try {
    server::BrowserGuard(listens_on, names).check(request, false, server::Cors());
  } catch (const server::RequestError& e) {
    EXPECT_EQ(e.code(), "unknown_host");
    return false;
  }
  return true;
}

TEST(BrowserGuard, KnowsTheServersNames) {
  for (const char* own : {"localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]", "[::1]:80", ""})
    EXPECT_TRUE(serves("127.0.0.1", "", own)) << own;
  for (const char* other : {"evil.example", "evil.example:8080", "localhost:80@evil.example", "localhost.evil.example",
                            "127.0.0.1.evil.example", "192.168.0.7", "coppice", "[::1", "::1:80:80", "0x7f.1",
                            "2130706433", "[2001:db8::1]:80"})
    EXPECT_FALSE(serves("127.0.0.1", "", other)) << other;
  EXPECT_TRUE(serves("127.0.0.1", "a.example,B.example:80", "b.example:8080"));
  EXPECT_TRUE(serves("127.0.0.1", "*", "evil.example"));
  // Who listens for others is reached by addresses and by names that no stranger's name server can give.
  for (const char* own :
       {"192.168.0.7:8080", "[2001:db8::1]:80", "coppice:8080", "box.local", "host.docker.internal", "localhost"})
    EXPECT_TRUE(serves("0.0.0.0", "", own)) << own;
  EXPECT_FALSE(serves("0.0.0.0", "", "evil.example"));
  EXPECT_TRUE(serves("box.example", "", "box.example:80"));
}

TEST_F(BrowserTest, AnotherNameIsRefused) {
  FakeModel& model = start(words({"x"}), with(""));
  for (const char* line : {"GET /v1/cache/tree", "GET /v1/cache/events", "GET /health", "GET /", "POST /v1/cache/reset",
                           "OPTIONS /v1/models", "GET /nowhere"})
    EXPECT_EQ(status(line, "Host: evil.example\r\n"), 403) << line;
  EXPECT_EQ(status("POST /v1/completions", "Host: evil.example\r\n", R"({"prompt": "hi"})"), 403);
  EXPECT_EQ(model.submitted(), 0U);
  EXPECT_EQ(exchange("GET /health HTTP/1.0\r\n\r\n").status, 200) << "no browser leaves the field out";
}

/// Such requests need no preflight.
TEST_F(BrowserTest, PagesOfOtherOriginsAreRefused) {
  FakeModel& model = start(words({"x"}), with(""));
  for (const char* page :
       {"Origin: https://evil.example\r\n", "Origin: null\r\n", "Origin: http://localhost:3000\r\n",
        "Origin: http://evil.example:80\r\n", "Origin: localhost\r\n", "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n"}) {
    const std::string fields = std::string("Host: localhost\r\nContent-Type: text/plain\r\n") + page;
    for (const char* path :
         {"/v1/cache/reset", "/v1/chat/completions", "/v1/cache/prefixes", "/tokenize", "/nowhere", "/health"})
      EXPECT_EQ(status(std::string("POST ") + path, fields, R"({"prompt": "hi"})"), 403) << path << page;
    for (const char* line :
         {"GET /v1/cache/tree", "GET /metrics", "DELETE /v1/responses/resp_1", "OPTIONS /v1/completions"})
      EXPECT_EQ(status(line, fields), 403) << line << page;
    EXPECT_EQ(status("GET /health", fields), 200) << page;
    EXPECT_EQ(status("GET /", fields), 200) << page;
  }
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(BrowserTest, TheServersOwnPageAndNamedOnesMayCall) {
  start(words({"x"}), with("https://app.example", "chat.example"));
  const auto complete = [&](const std::string& fields) {
    return status("POST /v1/completions", fields, R"({"prompt": "hi"})");
  };
  EXPECT_EQ(complete("Host: localhost:80\r\nOrigin: http://localhost\r\n"), 200);
  EXPECT_EQ(complete("Host: [::1]:8080\r\nOrigin: http://[::1]:8080\r\n"), 200);
  EXPECT_EQ(complete("Host: Chat.example\r\nOrigin: https://chat.example\r\n"), 200) << "behind a proxy with TLS";
  EXPECT_EQ(complete("Host: 127.0.0.1:8080\r\nOrigin: https://app.example\r\n"), 200);
  EXPECT_EQ(complete("Host: localhost\r\nSec-Fetch-Site: same-origin\r\n"), 200);
  EXPECT_EQ(status("GET /v1/models", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n"),
            200)
      << "a link";
  EXPECT_EQ(complete("Host: localhost\r\nOrigin: https://chat.example\r\n"), 403)
      << "another place than it was sent to";
}

TEST_F(BrowserTest, AllPagesMayCallIfTheOperatorSaysSo) {
  start(words({"x"}), with("*"));
  EXPECT_EQ(
      status("POST /v1/completions", "Host: evil.example\r\nOrigin: https://evil.example\r\n", R"({"prompt": "hi"})"),
      200);
}

/// No page has a key that it wasn't given.
TEST_F(BrowserTest, AKeyIsEnough) {
  server::ServerConfig c = with("");
  c.api.api_keys = {"secret"};
  start(words({"x"}), c);
  const std::string fields = "Host: coppice.example\r\nOrigin: https://app.example\r\n";
  EXPECT_EQ(status("POST /v1/completions", fields + "Authorization: Bearer secret\r\n", R"({"prompt": "hi"})"), 200);
  EXPECT_EQ(status("POST /v1/completions", fields, R"({"prompt": "hi"})"), 401);
}

}  // namespace
}  // namespace coppice::testing
