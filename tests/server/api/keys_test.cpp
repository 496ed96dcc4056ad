// API keys: the file, who gets in, and whose requests share the cache.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "server/api/api_keys.h"
#include "server/fixture.h"

namespace coppice::testing {
namespace {

using server::ApiKeys;
using server::KeyFileError;

class KeyFile {
 public:
  explicit KeyFile(const std::string& text = "", const std::string& name = "keys")
      : path_(std::filesystem::path(::testing::TempDir()) /
              fmt::format("{}-{}-{}", name, ::getpid(), ::testing::UnitTest::GetInstance()->random_seed())) {
    write(text);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  void write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(ApiKeysTest, FileHoldsKeysNamesAndComments) {
  const KeyFile file("# ours\n\nsk-plain\r\n  alice\tsk-alice  \n#sk-old\n");
  const ApiKeys keys(file.path());
  EXPECT_EQ(keys.size(), 2U);
  ASSERT_NE(keys.find("Bearer sk-alice"), nullptr);
  EXPECT_EQ(keys.find("Bearer sk-alice")->name, "alice");
  EXPECT_EQ(keys.find("bearer  sk-plain")->name, "line-3");
  for (const char* wrong : {"", "Bearer", "Bearer ", "Bearer sk-plai", "Bearer sk-plain ", "Bearer sk-plainx",
                            "sk-plain", "Basic sk-plain", "Bearer alice", "Bearer #sk-old", "Bearer sk-old"})
    EXPECT_EQ(keys.find(wrong), nullptr) << wrong;
}

TEST(ApiKeysTest, BadFilesAreRefusedWithoutQuotingThem) {
  const KeyFile file;
  for (const std::string& text : {std::string(), std::string("# none\n"), std::string("good\na b sk-secret\n"),
                                  std::string("good\nsk-secret\nsk-secret\n"), std::string("good\nsk-secret\xc3\xa9"),
                                  std::string("good\nsk-secret\0", 15), std::string(std::size_t{2} << 20, 'x')}) {
    file.write(text);
    try {
      const ApiKeys keys(file.path());
      ADD_FAILURE() << text;
    } catch (const KeyFileError& e) {
      EXPECT_NE(std::string(e.what()).find(file.path()), std::string::npos);
      EXPECT_EQ(std::string(e.what()).find("secret"), std::string::npos);
      if (text.starts_with("good")) EXPECT_NE(std::string(e.what()).find("line "), std::string::npos) << e.what();
    }
  }
  EXPECT_THROW(ApiKeys("/no/such/file"), KeyFileError);
  EXPECT_THROW(ApiKeys("/dev/zero"), KeyFileError);
}

TEST(ApiKeysTest, BadFileLeavesTheKeys) {
  const KeyFile file("one\n");
  ApiKeys keys(file.path());
  file.write("two words here\n");
  EXPECT_THROW(keys.read(), KeyFileError);
  EXPECT_NE(keys.find("Bearer one"), nullptr);
  file.write("two\n");
  keys.replace(keys.read());
  EXPECT_EQ(keys.find("Bearer one"), nullptr);
  EXPECT_NE(keys.find("Bearer two"), nullptr);
}

class KeysTest : public ServerTest {
 protected:
  server::ServerConfig with_keys(bool isolate = false) const {
    auto c = config();
    c.api.api_keys_file = file_.path();
    c.api.isolate_keys = isolate;
    return c;
  }
  static std::string bearer(const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; }
  HttpAnswer get_as(const std::string& path, const std::string& fields) {
    auto c = client();
    c->send(get_request(path, fields));
    return c->receive();
  }
  HttpAnswer complete_as(const std::string& fields, const std::string& more = "") {
    auto c = client();
    c->send(post_request("/v1/completions", R"({"prompt": "hi")" + more + "}", fields));
    return c->receive();
  }

  KeyFile file_{"alice key-a\nbob key-b\n"};
};

TEST_F(KeysTest, EverythingButHealthWantsOne) {
  FakeModel& model = start(words({"x"}), with_keys());
  for (const char* probe : {"/health", "/livez", "/readyz"}) EXPECT_EQ(get(probe).status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/v1/models/the-model", "/v1/cache/stats", "/nowhere", "/health/x",
                           "/health%2f", "http://x/metrics", "//health"}) {
    for (const std::string& fields : {std::string(), bearer("key-c"), std::string("Authorization: Basic key-a\r\n"),
                                      bearer("key-a") + bearer("key-b")}) {
      const HttpAnswer answer = get_as(path, fields);
      EXPECT_EQ(answer.status, 401) << path << fields;
      EXPECT_EQ(answer.code(), "invalid_api_key");
      EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
      EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
    }
  }
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"})
    EXPECT_EQ(post(path, "{}").status, 401) << path;
  EXPECT_EQ(model.submitted(), 0U);

  EXPECT_EQ(get_as("/v1/models", bearer("key-a")).status, 200);
  EXPECT_EQ(complete_as(bearer("key-b")).status, 200);
  const std::string metrics = get_as("/metrics", bearer("key-b")).body;
  EXPECT_NE(metrics.find(R"(coppice_http_requests_total{path="other",status="401"} 40)"), std::string::npos) << metrics;
}

TEST_F(KeysTest, TwoKeysAreToldThatOneIsWanted) {
  start({}, with_keys());
  const std::string body = get_as("/metrics", bearer("key-a") + bearer("key-b")).body;
  EXPECT_NE(body.find("'Authorization: Bearer KEY', once."), std::string::npos) << body;
}

/// Whoever has no key must not make the server read 16 MiB, or wait for them.
TEST_F(KeysTest, BodiesOfStrangersAreNotTaken) {
  start({}, with_keys());
  auto c = client();
  c->send("POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(c->receive().status, 401);
}

TEST_F(KeysTest, RequestsOfAllKeysShareUnlessToldOtherwise) {
  FakeModel& model = start(words({"x"}), with_keys());
  complete_as(bearer("key-a"));
  complete_as(bearer("key-b"), R"(, "cache_salt": "s")");
  EXPECT_EQ(model.salt(0), "");
  EXPECT_EQ(model.salt(1), "s");
}

TEST_F(KeysTest, IsolatedKeysAddToTheRequestsSalt) {
  FakeModel& model = start(words({"x"}), with_keys(true));
  std::set<std::string> salts;
  std::size_t n = 0;
  for (const char* key : {"key-a", "key-b"})
    for (const char* salt : {"", "s", "t", "st"}) {
      ASSERT_EQ(complete_as(bearer(key), fmt::format(R"(, "cache_salt": "{}")", salt)).status, 200);
      EXPECT_TRUE(model.salt(n).ends_with(salt));
      salts.insert(model.salt(n++));
    }
  EXPECT_EQ(salts.size(), n);
  complete_as(bearer("key-b"), R"(, "cache_salt": "t")");
  EXPECT_TRUE(salts.contains(model.salt(n))) << "the same key and salt share";
}

/// What tokenizing remembers is found faster: it must tell as little about other tenants as the cache does.
TEST_F(KeysTest, TextIsTokenizedUnderTheRequestsSalt) {
  FakeModel& model = start(words({"x"}), with_keys(true));
  for (const char* key : {"key-a", "key-b"}) {
    auto c = client();
    c->send(post_request("/tokenize", R"({"prompt": "hi"})", bearer(key)));
    ASSERT_EQ(c->receive().status, 200);
    ASSERT_EQ(complete_as(bearer(key), R"(, "cache_salt": "s")").status, 200);
    c->send(post_request("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}]})", bearer(key)));
    ASSERT_EQ(c->receive().status, 200);
  }
  ASSERT_EQ(model.submitted(), 4U);
  EXPECT_EQ(model.tokenized_salts(),
            (std::vector<std::string>{model.salt(0), model.salt(1), model.salt(2), model.salt(3)}));
}

/// A salt cannot be made to look like another key's: all that a request can add comes behind 33 bytes of its own key.
TEST_F(KeysTest, NoPairOfKeyAndSaltIsAnother) {
  const ApiKeys keys(file_.path());
  const std::string a = server::tenant_salt(*keys.find("Bearer key-a"));
  const std::string b = server::tenant_salt(*keys.find("Bearer key-b"));
  EXPECT_EQ(a.size(), b.size());
  EXPECT_NE(a, b);
  FakeModel& model = start(words({"x"}), with_keys(true));
  // Not UTF-8, and so no salt that a request may have.
  EXPECT_EQ(complete_as(bearer("key-a"), R"(, "cache_salt": ")" + a + "\"").status, 400);
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(KeysTest, ReloadReadsTheFileAgain) {
  FakeModel& model = start({}, with_keys());
  auto running = client();
  running->send(post_request("/v1/completions", R"({"prompt": "hi"})", bearer("key-a")));
  const auto id = model.wait_submitted(0);

  const auto status_of = [&](const char* key) { return get_as("/v1/models", bearer(key)).status; };
  const auto wait_for = [&](const char* key, int status) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    while (status_of(key) != status && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_EQ(status_of(key), status);
  };
  file_.write("key-c\n");
  server_->reload_keys();
  wait_for("key-c", 200);
  EXPECT_EQ(status_of("key-a"), 401);

  file_.write("three words here\nkey-d\n");
  server_->reload_keys();
  file_.write("key-c\nkey-e\n");  // whichever of the two it reads, the bad file never counts
  server_->reload_keys();
  wait_for("key-e", 200);
  EXPECT_EQ(status_of("key-c"), 200);
  EXPECT_EQ(status_of("key-d"), 401);

  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  EXPECT_EQ(running->receive().status, 200) << "what was let in goes on";
}

/// Of two files: one that can't be used leaves the keys of both, whichever it is.
TEST_F(KeysTest, ReloadTakesBothFilesOrNone) {
  const KeyFile operators("operator-1\n", "operators");
  auto c = with_keys();
  c.api.operator_keys_file = operators.path();
  start({}, c);
  const auto status_of = [&](const char* key) { return get_as("/v1/models", bearer(key)).status; };
  const auto reload = [&](const std::string& keys, const std::string& operator_keys) {
    file_.write(keys);
    operators.write(operator_keys);
    server_->reload_keys();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  reload("key-c\n", "three words here\n");
  EXPECT_EQ(status_of("key-a"), 200);
  EXPECT_EQ(status_of("key-c"), 401);
  reload("three words here\n", "operator-2\n");
  EXPECT_EQ(status_of("operator-1"), 200);
  EXPECT_EQ(status_of("operator-2"), 401);
  reload("key-c\n", "operator-2\n");
  for (const char* key : {"key-c", "operator-2"}) EXPECT_EQ(status_of(key), 200) << key;
  for (const char* key : {"key-a", "operator-1"}) EXPECT_EQ(status_of(key), 401) << key;
}

TEST_F(KeysTest, AnOpenFeedEndsWithItsKey) {
  start({}, with_keys());
  auto gone = client(), kept = client();
  gone->send(get_request("/v1/cache/events", bearer("key-a")));
  gone->read_until("data: ");
  kept->send(get_request("/v1/cache/events", bearer("key-b")));
  kept->read_until("data: ");
  file_.write("key-b\n");
  server_->reload_keys();
  gone->read_until("\r\n0\r\n\r\n");
  EXPECT_FALSE(kept->read_until("\n\n").empty());
}

TEST_F(KeysTest, ServerDoesNotStartWithoutTheFile) {
  auto c = with_keys();
  c.api.api_keys_file = "/no/such/file";
  EXPECT_THROW(server::Server{c}, KeyFileError);
}

/// Who pays for pins is the key. Without keys all pay together: a client has as many salts as it likes.
TEST_F(KeysTest, NewSaltsBringNoNewShareOfPins) {
  for (const bool keys : {false, true}) {
    server::ServerConfig c = config();
    if (keys) c.api.api_keys = {"sk-one", "sk-two"};
    FakeModel& model = start(words({"x"}), c);
    const auto pay = [&](const std::string& key, const std::string& salt) {
      const auto nth = model.submitted();
      exchange(post_request("/v1/completions", R"({"prompt": "hi", "cache_salt": ")" + salt + "\"}",
                            key.empty() ? "" : fmt::format("Authorization: Bearer {}\r\n", key)));
      model.wait_submitted(nth);
      return model.payer(nth);
    };
    const std::string one = keys ? "sk-one" : "", two = keys ? "sk-two" : "";
    EXPECT_EQ(pay(one, "a"), pay(one, "b"));
    EXPECT_EQ(pay(one, "a") == pay(two, "a"), !keys);
  }
}

}  // namespace
}  // namespace coppice::testing
