// Paths with a place for an id, and several methods at one path.
#include "server/api/route_table.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace coppice::server {
namespace {

RouteTable table() {
  RouteTable routes;
  routes.add({.path = "/things", .method = "POST"});
  routes.add({.path = "/things/{id}", .method = "GET"});
  routes.add({.path = "/things/{id}", .method = "DELETE"});
  routes.add({.path = "/things/{id}/parts", .method = "GET"});
  routes.add({.path = "/below/", .method = "GET"});
  return routes;
}

std::string found(std::string_view path, std::string_view method = "GET") {
  static const RouteTable routes = table();
  const Route* const route = routes.find(path, method);
  return route == nullptr ? "" : route->method + " " + route->path;
}

TEST(RouteTableTest, FindsPathsWithIds) {
  EXPECT_EQ(found("/things", "POST"), "POST /things");
  EXPECT_EQ(found("/things/7"), "GET /things/{id}");
  EXPECT_EQ(found("/things/7/", "DELETE"), "DELETE /things/{id}");
  EXPECT_EQ(found("/things/7/parts"), "GET /things/{id}/parts");
  EXPECT_EQ(found("/things/parts/parts"), "GET /things/{id}/parts");
  EXPECT_EQ(found("/below/a/b"), "GET /below/");
  for (const char* path :
       {"", "/", "/thing", "/things//", "/things//parts", "/things/7/part", "/things/7/parts/1", "/below", "/below/"})
    EXPECT_EQ(found(path), "") << path;
}

TEST(RouteTableTest, TellsWhichMethodsAPathHas) {
  EXPECT_EQ(found("/things/7", "PUT"), "GET /things/{id}") << "any, for the words of the error";
  EXPECT_EQ(table().methods("/things/7"), "GET, DELETE");
  EXPECT_EQ(table().methods("/things/7/"), "GET, DELETE");
  EXPECT_EQ(table().methods("/nowhere"), "");
}

TEST(RouteTableTest, SegmentsAreDecoded) {
  EXPECT_EQ(path_segment("/things/a%20b/parts", 1), "a b");
  EXPECT_EQ(path_segment("/things/a%2Fb", 1), "a/b");
  EXPECT_EQ(path_segment("/things", 1), "");
}

}  // namespace
}  // namespace coppice::server
