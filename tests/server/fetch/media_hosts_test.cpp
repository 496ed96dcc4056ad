#include "server/fetch/media_hosts.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace coppice::server {
namespace {

using boost::asio::ip::make_address;

TEST(MediaHostsTest, NobodysOwnAddressIsPublic) {
  for (const char* address :
       {"0.0.0.0",          "10.1.2.3",        "100.64.0.1",     "100.127.255.255", "127.0.0.1",   "127.255.255.255",
        "169.254.169.254",  "172.16.0.1",      "172.31.255.255", "192.0.0.1",       "192.168.1.1", "198.18.0.1",
        "198.19.255.255",   "224.0.0.1",       "240.0.0.1",      "255.255.255.255", "::",          "::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1",    "64:ff9b::7f00:1", "fe80::1",     "fe80::1%1",
        "fc00::1",          "fd12:3456::1",    "ff02::1",        "2001::1",         "2001:db8::1", "2002:7f00:1::1"})
    EXPECT_FALSE(is_public(make_address(address))) << address;
  for (const char* address :
       {"1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "172.15.255.255",
        "172.32.0.0", "192.167.255.255", "223.255.255.255", "::ffff:1.1.1.1", "2606:4700:4700::1111", "2a00:1450::1"})
    EXPECT_TRUE(is_public(make_address(address))) << address;
}

TEST(MediaHostsTest, NamesAreThoseOfTheList) {
  const MediaHosts hosts({"Images.Example.com", "*.cdn.example.org"});
  for (const char* host : {"images.example.com", "a.cdn.example.org", "a.b.cdn.example.org"})
    EXPECT_TRUE(hosts.may_say(host)) << host;
  for (const char* host :
       {"example.com", "a.images.example.com", "cdn.example.org", "xcdn.example.org", "1.1.1.1", "::1", ""})
    EXPECT_FALSE(hosts.may_say(host)) << host;
  EXPECT_FALSE(hosts.none());
  EXPECT_TRUE(MediaHosts().none());
}

TEST(MediaHostsTest, WithAllNamesPrivateAddressesStayOut) {
  const MediaHosts hosts({"*"});
  EXPECT_TRUE(hosts.may_say("a.b"));
  EXPECT_TRUE(hosts.may_say("1.1.1.1"));
  EXPECT_FALSE(hosts.may_say("127.0.0.1"));
  EXPECT_TRUE(hosts.may_say("localhost"));  // where it leads is looked at
  EXPECT_FALSE(hosts.may_connect(make_address("127.0.0.1")));
  EXPECT_TRUE(hosts.may_connect(make_address("1.1.1.1")));
}

TEST(MediaHostsTest, APrivateAddressIsAllowedByItselfOrItsNetwork) {
  const MediaHosts hosts({"10.1.0.0/16", "127.0.0.1", "fd00::/8", "::1"});
  for (const char* address : {"10.1.2.3", "127.0.0.1", "::ffff:10.1.2.3", "fd12::1", "::1"}) {
    EXPECT_TRUE(hosts.may_connect(make_address(address))) << address;
    EXPECT_TRUE(hosts.may_say(address)) << address;
  }
  for (const char* address : {"10.2.0.0", "127.0.0.2", "fc00::1", "::2"}) {
    EXPECT_FALSE(hosts.may_connect(make_address(address))) << address;
    EXPECT_FALSE(hosts.may_say(address)) << address;
  }
}

TEST(MediaHostsTest, WhatIsNoHostIsAnError) {
  for (const char* host : {"", "http://a.b", "a.b/c", "a.b:80", "*.", "a*b", "a b", "10.0.0.0/33", "*.*.a"})
    EXPECT_THROW(MediaHosts({host}), std::invalid_argument) << host;
}

}  // namespace
}  // namespace coppice::server
