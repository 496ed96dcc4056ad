// RedisStore against a server that fails as it is told, and against a real one: Debian's redis-tools, or the program
// that COPPICE_REDIS names.
#include "tier/redis/redis_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/dice.h"
#include "tier/disk/disk_fixture.h"
#include "tier/redis/fake_redis.h"

extern char** environ;

namespace coppice::test {
namespace {

using std::chrono::seconds;
using tier::RedisStore;
using tier::Seal;

class RedisTest : public testing::Test {
 protected:
  std::unique_ptr<RedisStore> start(int port, const std::string& password = "",
                                    std::optional<Seal> seal = std::nullopt) {
    tier::RedisOptions options{.address = {.host = "127.0.0.1", .port = port, .password = password}};
    return std::make_unique<RedisStore>(options, seal, [](const std::string&) {});
  }
  std::unique_ptr<RedisStore> start_on(int port, std::optional<Seal> seal = std::nullopt) {
    auto store = start(port, "", seal);
    while (!store->counters().on) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return store;
  }
  tier::Buffer piece(const tier::Name& name, std::size_t payload_bytes = 10'000) {
    tier::Buffer buffer = buffers_.take();
    fill_piece(buffer, name, payload_bytes);
    return buffer;
  }
  std::vector<bool> held(RedisStore& store, std::vector<tier::Name> names) {
    std::promise<std::vector<bool>> answer;
    auto answered = answer.get_future();
    store.find(std::move(names),
               [answer = std::move(answer)](std::vector<bool> found) mutable { answer.set_value(std::move(found)); });
    return answered.get();
  }
  bool loads(RedisStore& store, const tier::Name& name) {
    std::promise<bool> answer;
    auto answered = answer.get_future();
    store.load(name, buffers_.take(), [answer = std::move(answer), name](const tier::Buffer& got) mutable {
      const bool opens = got.size() > 0 && tier::open_piece(got.bytes(), &name).has_value();
      answer.set_value(opens);
      return opens;
    });
    return answered.get();
  }
  bool put(RedisStore& store, const tier::Name& name, std::size_t payload_bytes = 10'000) {
    const std::int64_t before = store.counters().writes;
    if (!store.offer(name, piece(name, payload_bytes))) return false;
    while (store.counters().pending > 0) std::this_thread::yield();
    return store.counters().writes > before;
  }
  /// What a store must do, whatever server it is.
  void keeps_and_gives(int port);

  tier::Buffers buffers_{32, 1 << 20};
};

void RedisTest::keeps_and_gives(int port) {
  const auto one = start_on(port), other = start_on(port);
  for (int i = 0; i < 20; ++i)
    EXPECT_TRUE(put(*one, name_of(i, i % 2, i % 3), static_cast<std::size_t>(1 + 40'000 * i)));
  EXPECT_TRUE(put(*other, name_of(0)));  // is there
  std::vector<tier::Name> names;
  for (int i = 0; i < 1500; ++i) names.push_back(name_of(i, i % 2, i % 3));
  const auto found = held(*other, names);
  for (int i = 0; i < 1500; ++i) EXPECT_EQ(found[static_cast<std::size_t>(i)], i < 20);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(loads(*other, name_of(i, i % 2, i % 3)));
  EXPECT_FALSE(loads(*other, name_of(99)));
  one->forget({.model = name_of(0, 1).model, .space = name_of(0, 0, 2).space});
  one->forget({.unused_for = std::chrono::hours(1)});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(held(*one, {name_of(i, i % 2, i % 3)})[0], i % 6 != 5);
  one->forget({});
  EXPECT_FALSE(held(*one, {name_of(0)})[0] || loads(*one, name_of(0)));
  while (held(*other, {name_of(0), name_of(4, 0, 1)}) != std::vector<bool>{false, false}) std::this_thread::yield();
  EXPECT_EQ(one->counters().io_errors + other->counters().io_errors, 0);
}

/// Whoever asks behind it may read before the piece is removed, and answer when nothing is left to remove.
TEST_F(RedisTest, WhatIsForgottenIsGoneAtOnce) {
  FakeRedis server;
  const auto store = start_on(server.port());
  std::vector<tier::Name> names(100, name_of(1));
  names[0] = name_of(0);
  for (int i = 0; i < 300; ++i) {
    while (!put(*store, name_of(0), 100)) std::this_thread::yield();  // not while the last one is being removed
    store->forget({});
    ASSERT_FALSE(held(*store, names)[0]) << i;
    ASSERT_FALSE(loads(*store, name_of(0))) << i;
  }
}

TEST_F(RedisTest, KeepsAndGives) {
  FakeRedis server;
  keeps_and_gives(server.port());
}

/// A process that is ended with its scope.
class Program {
 public:
  Program(const std::string& file, std::vector<std::string> arguments) {
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const int output : {1, 2}) posix_spawn_file_actions_addopen(&actions, output, "/dev/null", O_WRONLY, 0);
    if (::posix_spawnp(&id_, file.c_str(), &actions, nullptr, pointers.data(), environ) != 0) id_ = 0;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() { kill(); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void kill() {
    if (id_ > 0) ::kill(id_, SIGKILL);
    end();
  }
  /// Its status.
  int end() {
    int status = -1;
    if (id_ > 0) ::waitpid(std::exchange(id_, 0), &status, 0);
    return status;
  }

 private:
  pid_t id_ = 0;
};

/// "": there is none. Debian's redis-tools has the server's program under this name; it goes by the first argument. The
/// package redis-server would also start one.
std::string redis_server() {
  const char* const given = std::getenv("COPPICE_REDIS");
  const std::string program = given != nullptr ? given : "/usr/bin/redis-check-rdb";
  return std::filesystem::exists(program) ? program : "";
}

/// None of those that the system gives to whoever asks for any: another program might have it before the server does.
int free_port() {
  std::random_device random;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  for (bool taken = true; taken;) {
    address.sin_port = htons(static_cast<std::uint16_t>(10'000 + random() % 20'000));
    const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
    taken = ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0;
    ::close(socket);
  }
  return ntohs(address.sin_port);
}

TEST_F(RedisTest, KeepsAndGivesOnARealServer) {
  if (redis_server().empty()) GTEST_SKIP() << "there is no program of Redis";
  const int port = free_port();
  Program server(redis_server(), {"redis-server", "--port", std::to_string(port), "--save", "", "--dir", "/tmp"});
  while (!tier::connect({.host = "127.0.0.1", .port = port})) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  keeps_and_gives(port);
  // It goes away while the store loads: misses, and nothing waits.
  const auto store = start_on(port);
  EXPECT_TRUE(put(*store, name_of(1)));
  server.kill();
  EXPECT_FALSE(loads(*store, name_of(1)));
  EXPECT_FALSE(held(*store, {name_of(1)})[0]);
  EXPECT_FALSE(store->counters().on);
}

TEST_F(RedisTest, TlsTrustsOnlyTheRightCertificate) {
  if (redis_server().empty()) GTEST_SKIP() << "there is no program of Redis";
  char folder[] = "/tmp/coppice-tls-XXXXXX";
  const std::string key = std::string(::mkdtemp(folder)) + "/key", certificate = std::string(folder) + "/certificate";
  const int made =
      Program("openssl", {"openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
                          certificate, "-days", "2", "-subj", "/CN=redis", "-addext", "subjectAltName=IP:127.0.0.1"})
          .end();
  const int port = free_port();
  Program server(redis_server(), {"redis-server", "--port", "0", "--tls-port", std::to_string(port), "--tls-cert-file",
                                  certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate,
                                  "--tls-auth-clients", "no", "--save", "", "--dir", "/tmp"});
  const auto why = [&](const char* host) {
    for (;;) {
      const auto wire = tier::connect({.host = host, .port = port, .tls = true});
      if (wire || !wire.error().contains("refused")) return wire ? std::string() : wire.error();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  };
  ASSERT_EQ(made, 0);
  EXPECT_THAT(why("127.0.0.1"), testing::HasSubstr("certificate verify failed"));
  ::setenv("SSL_CERT_FILE", certificate.c_str(), 1);
  ASSERT_EQ(why("127.0.0.1"), "");
  EXPECT_THAT(why("127.0.0.2"), testing::HasSubstr("certificate verify failed"));
  {
    RedisStore store({.address = {.host = "127.0.0.1", .port = port, .tls = true}}, std::nullopt,
                     [](const std::string&) {});
    while (!store.counters().on) std::this_thread::yield();
    EXPECT_TRUE(put(store, name_of(1), 900'000) && loads(store, name_of(1)));
  }
  ::unsetenv("SSL_CERT_FILE");
  std::filesystem::remove_all(folder);
}

TEST_F(RedisTest, AFullServerIsADroppedWrite) {
  FakeRedis server;
  const auto store = start_on(server.port());
  server.full = true;
  EXPECT_FALSE(put(*store, name_of(1)));
  EXPECT_TRUE(store->counters().on);
  EXPECT_EQ(store->counters().dropped, 1);
  server.full = false;
  EXPECT_TRUE(put(*store, name_of(1)));
}

TEST_F(RedisTest, DamageIsAMissAndGoes) {
  FakeRedis server;
  const auto store = start_on(server.port());
  ASSERT_TRUE(put(*store, name_of(1)));
  server.flips = true;
  EXPECT_FALSE(loads(*store, name_of(1)));
  server.flips = false;
  while (!server.values().empty()) std::this_thread::yield();
  EXPECT_FALSE(held(*store, {name_of(1)})[0]);
  EXPECT_EQ(store->counters().damaged, 1);
}

TEST_F(RedisTest, WhatWasForgottenIsRemovedBeforeItStops) {
  FakeRedis server;
  const auto store = start_on(server.port());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(put(*store, name_of(i)));
  store->forget({});
  store->stop(tier::Clock::now() + seconds(60));
  EXPECT_TRUE(server.values().empty());
}

TEST_F(RedisTest, AServerThatStopsInItsAnswerCostsMisses) {
  FakeRedis server;
  {
    const auto store = start_on(server.port());
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(put(*store, name_of(i)));
  }
  for (const int cut : {0, 1, 5, 7, 100, 9000}) {
    const auto store = start_on(server.port());
    server.cut_after = cut;
    std::atomic<int> answers = 0;
    for (int i = 0; i < 4; ++i) {
      store->load(name_of(i), buffers_.take(), [&](const tier::Buffer& got) {
        EXPECT_EQ(got.size(), 0U);
        ++answers;
        return false;
      });
    }
    while (answers < 4) std::this_thread::yield();
    server.cut_after = -1;
    EXPECT_EQ(store->counters().switch_offs, 1);
    EXPECT_FALSE(store->offer(name_of(9), piece(name_of(9))));  // left alone for a while
  }
  const auto store = start_on(server.port());
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(loads(*store, name_of(i)));
}

TEST_F(RedisTest, WhatIsNoServerForBlocksIsRefusedInWords) {
  const auto why = [&](const FakeRedis& server, const std::string& password = "") {
    const auto store = start(server.port(), password);
    while (store->counters().switch_offs == 0) std::this_thread::yield();
    EXPECT_FALSE(loads(*store, name_of(1)));
    return store->counters().off_because;
  };
  FakeRedis cluster, web, closed, old;
  old.old = true;
  cluster.cluster = web.garbage = true;
  closed.password = "secret";
  EXPECT_THAT(why(cluster), testing::HasSubstr("is a cluster"));
  EXPECT_THAT(why(old), testing::HasSubstr("unknown command 'GETEX'"));
  EXPECT_EQ(why(web), "doesn't speak Redis's protocol");
  EXPECT_THAT(why(closed), testing::HasSubstr("NOAUTH"));
  EXPECT_THAT(why(closed, "wrong"), testing::HasSubstr("WRONGPASS"));
  const auto store = start(closed.port(), "secret");
  while (!store->counters().on) std::this_thread::yield();
  EXPECT_TRUE(put(*store, name_of(1)) && loads(*store, name_of(1)));
  const auto nobody = start(1);
  while (nobody->counters().switch_offs == 0) std::this_thread::yield();
  EXPECT_EQ(nobody->counters().off_because, "can't be reached: Connection refused");
}

TEST_F(RedisTest, WithASecretNothingCanBeReadOrPassedOff) {
  const std::vector<std::byte> secret(32, std::byte{1}), other(32, std::byte{2});
  FakeRedis server;
  const auto store = start_on(server.port(), Seal(secret));
  ASSERT_TRUE(put(*store, name_of(1)) && put(*store, name_of(2)));
  EXPECT_TRUE(loads(*store, name_of(1)) && held(*store, {name_of(2)})[0]);
  for (const auto& [key, value] : server.values()) {
    EXPECT_FALSE(key.contains(to_string(name_of(1)).substr(66)));
    EXPECT_FALSE(value.contains("about"));
  }
  EXPECT_FALSE(loads(*start_on(server.port(), Seal(other)), name_of(1)));
  store->forget({.model = name_of(1).model});
  while (!server.values().empty()) std::this_thread::yield();
}

TEST_F(RedisTest, EveryCallIsAnsweredOnceWhateverComesTogether) {
  FakeRedis server;
  std::atomic<int> finds = 0, loads = 0, hits = 0, wrong = 0;
  int asked_finds = 0, asked_loads = 0;
  tier::Buffers buffers(64, 64 << 10);
  Dice dice(1);
  {
    const auto store = start_on(server.port());
    for (int k = 0; k < 3000; ++k) {
      const tier::Name name = name_of(static_cast<int>(dice.below(60)), static_cast<int>(dice.below(2)));
      tier::Buffer buffer = buffers.take();
      const auto what = dice.below(6);
      if (k % 700 == 699) store->forget({.model = name.model});
      if (what == 0) {
        ++asked_finds;
        store->find({name, name_of(1)}, [&](const std::vector<bool>& found) { finds += found.size() == 2 ? 1 : 0; });
      } else if (what < 3 && buffer) {
        fill_piece(buffer, name, 10'000);
        store->offer(name, std::move(buffer));
      } else if (buffer) {
        ++asked_loads;
        store->load(name, std::move(buffer), [&, name](const tier::Buffer& got) {
          ++loads;
          const bool opens = got.size() > 0 && tier::open_piece(got.bytes(), &name).has_value();
          hits += opens ? 1 : 0;
          wrong += got.size() > 0 && !opens ? 1 : 0;
          return opens;
        });
      }
      if (dice.chance(10)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(finds, asked_finds);
  EXPECT_EQ(loads, asked_loads);
  EXPECT_GT(hits, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(buffers.free(), buffers.count());
}

}  // namespace
}  // namespace coppice::test
