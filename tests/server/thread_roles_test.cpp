// What belongs to one thread ends the process if another one comes: each entry of it, once it has been entered.
#include <gtest/gtest.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api/api.h"
#include "server/api/cache/cache_feed.h"
#include "server/api/metrics.h"
#include "server/api/request_log.h"
#include "server/base/key_quota.h"
#include "server/fake_model.h"
#include "server/http/http_server.h"
#include "server/http/http_session.h"
#include "server/jobs/ask.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/job.h"
#include "server/jobs/work_queue.h"

namespace coppice::testing {
namespace {

struct Entry {
  std::string name;
  std::function<void()> call;
};

/// `enter` gives this thread the role, then each of the entries is called by another one.
void expect_one_thread(const std::function<void()>& enter, const std::vector<Entry>& entries) {
  enter();
  for (const Entry& entry : entries) {
    EXPECT_DEATH(std::thread(entry.call).join(), "broken contract: .*io_thread_?\\.mine\\(\\)") << entry.name;
  }
}

class ThreadRolesTest : public ::testing::Test {
 protected:
  boost::asio::io_context io_;
  server::EventHub hub_{io_};
  server::WorkQueue worker_;
  FakeModel model_{[](std::vector<engine::Event>&&) {}};

  /// Runs the beginning of a coroutine.
  template <class T>
  void begin(boost::asio::awaitable<T> work) {
    boost::asio::io_context io;
    boost::asio::co_spawn(io, std::move(work), [](const auto&...) {});
    io.run_one();
  }
};

TEST_F(ThreadRolesTest, Events) {
  server::Job job(hub_, model_, io_.get_executor(), 1, "");
  server::Job other(hub_, model_, io_.get_executor(), 1, "");
  server::EventHub hub(io_);
  expect_one_thread([&] { hub.add(1, job); }, {{"add", [&] { hub.add(2, job); }},
                                               {"remove", [&] { hub.remove(1); }},
                                               {"open", [&] { hub.open(); }},
                                               {"on_report", [&] { hub.on_report({}); }},
                                               {"shutdown", [&] { hub.shutdown(); }}});
  hub.remove(1);
  expect_one_thread([&] { job.take(); }, {{"submit", [&] { job.submit({}); }},
                                          {"wait", [&] { begin(job.wait()); }},
                                          {"take", [&] { job.take(); }},
                                          {"on_event", [&] { job.on_event({}); }},
                                          {"on_shutdown", [&] { job.on_shutdown(); }}});
  auto ask = std::make_unique<server::Ask<engine::View>>(io_);
  expect_one_thread(
      [&] { ask->reply(); },
      {{"reply", [&] { ask->reply(); }}, {"answer", [&] { begin(ask->answer()); }}, {"the end", [&] { ask.reset(); }}});
}

TEST_F(ThreadRolesTest, Counts) {
  server::KeyQuota quota({.all = 2, .of_key = 2});
  auto place = quota.take("a");
  server::BodyBudget budget(100, 10);
  auto charge = std::make_unique<server::BodyBudget::Charge>(budget, "a");
  expect_one_thread([&] { charge->raise(5); }, {{"take", [&] { quota.take("b"); }},
                                                {"give back a place", [&] { place.reset(); }},
                                                {"raise", [&] { charge->raise(6); }},
                                                {"give back bytes", [&] { charge.reset(); }}});
  server::Metrics metrics;
  expect_one_thread([&] { metrics.begin_preparation(); },
                    {{"count_request", [&] { metrics.count_request("/", 200); }},
                     {"count_rejected", [&] { metrics.count_rejected(engine::Refusal::kTooLong); }},
                     {"count_client_gone", [&] { metrics.count_client_gone(); }},
                     {"begin_preparation", [&] { metrics.begin_preparation(); }},
                     {"end_preparation", [&] { metrics.end_preparation(1); }},
                     {"observe_first_token", [&] { metrics.observe_first_token(1); }},
                     {"observe_request", [&] { metrics.observe_request(1, 1, 2); }},
                     {"scrape", [&] { metrics.scrape(nullptr, {}, {}); }}});
  server::RequestLog log("");
  expect_one_thread([&] { log.write({}); }, {{"write", [&] { log.write({}); }}});
}

TEST_F(ThreadRolesTest, Requests) {
  server::WorkQueue slow, viewing;
  server::Api api({}, hub_, worker_, {worker_, slow}, viewing);
  server::HttpRequest request;
  expect_one_thread([&] { api.set_progress("loading", 0.5); },
                    {{"admit", [&] { api.admit(request); }},
                     {"refuse", [&] { api.refuse(server::RequestError(400, "no"), "GET", "/"); }},
                     {"reload_keys", [&] { api.reload_keys(); }},
                     {"set_progress", [&] { api.set_progress("", 0); }},
                     {"set_ready", [&] { api.set_ready(nullptr); }},
                     {"set_draining", [&] { api.set_draining(); }}});
  server::CacheFeed feed(io_, viewing);
  expect_one_thread([&] { feed.enter("a"); }, {{"enter", [&] { feed.enter("a"); }},
                                               {"ask", [&] { begin(feed.ask(model_, {}, "a")); }},
                                               {"frame", [&] { feed.frame({}, "a"); }},
                                               {"refresh", [&] { begin(feed.refresh(nullptr, model_, {})); }}});
}

TEST_F(ThreadRolesTest, Connections) {
  server::WorkQueue slow, viewing;
  server::Api api({}, hub_, worker_, {worker_, slow}, viewing);
  server::HttpServer http(io_, {}, api);
  expect_one_thread([&] { http.busy(); }, {{"start", [&] { http.start(); }},
                                           {"finish", [&] { http.finish(); }},
                                           {"busy", [&] { http.busy(); }},
                                           {"lingering", [&] { http.lingering(); }},
                                           {"close", [&] { http.close(); }},
                                           {"figures", [&] { http.figures(); }}});
  server::HttpLimits limits;
  server::BodyBudget bodies(100, 10);
  server::WaitingList waiting;
  server::HttpSession session(boost::asio::ip::tcp::socket(io_), limits, {bodies, bodies, waiting}, api);
  expect_one_thread([&] { session.idle_seconds({}); }, {{"run", [&] { begin(session.run()); }},
                                                        {"turn_away", [&] { begin(session.turn_away({503, "full"})); }},
                                                        {"idle_seconds", [&] { session.idle_seconds({}); }},
                                                        {"check_deadline", [&] { session.check_deadline({}); }},
                                                        {"finish", [&] { session.finish(); }},
                                                        {"close", [&] { session.close(); }},
                                                        {"send", [&] { begin(session.send({})); }},
                                                        {"reserve", [&] { session.reserve(1); }},
                                                        {"begin_stream", [&] { begin(session.begin_stream()); }},
                                                        {"write", [&] { begin(session.write("")); }},
                                                        {"end_stream", [&] { begin(session.end_stream()); }}});
  server::WaitingList::Entry entry(waiting, session, boost::asio::ip::address_v4::loopback());
  expect_one_thread([&] { entry.wait(); }, {{"wait", [&] { entry.wait(); }},
                                            {"leave", [&] { entry.leave(); }},
                                            {"longest_owing", [&] { waiting.longest_owing({}); }},
                                            {"one_too_many", [&] { waiting.one_too_many(entry, 1, {}); }}});
}

}  // namespace
}  // namespace coppice::testing
