#include "server/fetch/url.h"

#include <gtest/gtest.h>

namespace coppice::server {
namespace {

TEST(UrlTest, IsReadInItsParts) {
  EXPECT_EQ(parse_url("http://Example.COM/a/b.png?x=1#part"),
            (Url{.tls = false, .host = "example.com", .port = 80, .target = "/a/b.png?x=1"}));
  EXPECT_EQ(parse_url("HTTPS://a.b:8443"), (Url{.tls = true, .host = "a.b", .port = 8443, .target = "/"}));
  EXPECT_EQ(parse_url("https://a.b?x"), (Url{.tls = true, .host = "a.b", .port = 443, .target = "/?x"}));
  EXPECT_EQ(parse_url("http://[::1]:8080/a"), (Url{.tls = false, .host = "::1", .port = 8080, .target = "/a"}));
  EXPECT_EQ(parse_url("http://a.b./c")->host, "a.b");
  EXPECT_EQ(parse_url("http://a.b:/c")->port, 80);
}

TEST(UrlTest, WhatNoServerShouldBeAskedForIsNone) {
  for (const char* text : {"",
                           "a.b/c",
                           "ftp://a.b/c",
                           "file:///etc/passwd",
                           "http://",
                           "http:///c",
                           "http://user@a.b/c",
                           "http://a.b@c.d/",
                           "http://a.b:99999/",
                           "http://a.b:0/",
                           "http://a.b:x/",
                           "http://a.b:80x/",
                           "http://[::1/",
                           "http://[::1]x/",
                           "http://[a.b]/",
                           "http://a b/",
                           "http://a.b/c d",
                           "http://a.b/c\r\nHost: d",
                           "http://a.b/\xc3\xa4",
                           "http://a.b\\@c.d/",
                           "http://a%2eb/",
                           "http://::1/"})
    EXPECT_FALSE(parse_url(text).has_value()) << text;
}

TEST(UrlTest, ARedirectionSaysAllOrAPart) {
  const Url from = *parse_url("https://a.b:8443/c/d?e");
  const auto to = [&](const char* location) {
    const auto url = redirected(from, location);
    return url ? (url->tls ? "https " : "http ") + url->authority() + " " + url->target : "none";
  };
  EXPECT_EQ(to("http://x.y/z"), "http x.y /z");
  EXPECT_EQ(to("//x.y/z"), "https x.y /z");
  EXPECT_EQ(to("/z"), "https a.b:8443 /z");
  EXPECT_EQ(to("z"), "https a.b:8443 /c/z");
  EXPECT_EQ(to("?z"), "https a.b:8443 /c/d?z");
  EXPECT_EQ(to("http://u@x.y/"), "none");
  EXPECT_EQ(to("/a b"), "none");
  EXPECT_EQ(to("file:///etc/passwd"), "none");
  EXPECT_EQ(to("/z:1"), "https a.b:8443 /z:1");
}

}  // namespace
}  // namespace coppice::server
