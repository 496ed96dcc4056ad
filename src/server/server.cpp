#include "server/server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "check/assert.h"
#include "check/thread_role.h"
#include "port/process.h"
#include "server/api/api.h"
#include "server/api/responses/response_archive.h"
#include "server/http/as_tuple.h"
#include "server/http/http_server.h"
#include "server/http/rethrow.h"
#include "server/http/while.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/work_queue.h"
#include "vision/pictures.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr int kIoNice = 5;  // the engine's threads wait for each other: a busy io thread must not stall one
constexpr int kViewingNice = 10;
constexpr std::size_t kReservedDescriptors = 128;

/// Thousands of streams need a descriptor each. Returns how many connections fit.
std::size_t make_room_for_connections() {
  const std::size_t limit = port::raise_descriptor_limit();
  if (limit == 0) return 512;
  return limit > 2 * kReservedDescriptors ? limit - kReservedDescriptors : limit / 2;
}

/// Threads that parse, render and tokenize bodies. Half of the cores: the engine's threads need them, too.
int n_preparing() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 2, 2, 8);
}

std::chrono::steady_clock::duration duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

void set_nice(int more) {
  if (!port::make_thread_nicer(more)) SPDLOG_WARN("a thread of the server keeps its priority: setpriority failed");
}

void lower_priority() {
  set_nice(kIoNice);
}

/// Of one that prepares requests: what takes longer than a moment has threads of its own.
void begin_preparing() {
  lower_priority();
  vision::forbid_decoding_here();
}

void step_back() {
  set_nice(kViewingNice);
}

}  // namespace

// run() returns when no coroutine is left, on `io` or on a worker: none of them sees a member's end. Members are
// destroyed last to first, so `io` outlives the sockets and timers that are registered with it.
struct Server::Impl {
  explicit Impl(ServerConfig c)
      : config(limited(std::move(c))),
        hub(io),
        api(config.api, hub, worker, {compiling, compiling_slowly}, viewing),
        http(io, config.http, api),
        drain_timer(io),
        reload_timer(io) {
    api.set_http_figures([this] { return http.figures(); });
    http.listen(config.host, config.port);
    port = http.port();
  }

  static ServerConfig limited(ServerConfig c) {
    c.api.host = c.host;
    const std::size_t room = make_room_for_connections();
    if (room < c.http.max_connections) {
      SPDLOG_WARN("{} connections at once, not {}: the process may have too few descriptors (ulimit -n, LimitNOFILE=)",
                  room, c.http.max_connections);
      c.http.max_connections = room;
    }
    return c;
  }

  void run();
  bool run_io();
  void set_model(std::shared_ptr<Model> m);
  void begin_drain();
  void reload_keys();
  asio::awaitable<void> drain();
  void end();
  asio::awaitable<void> wait_until(auto done, double seconds);

  const ServerConfig config;
  std::uint16_t port = 0;
  WorkQueue worker{begin_preparing, config.preparing_threads > 0 ? config.preparing_threads : n_preparing()};
  WorkQueue compiling{lower_priority, 2};  ///< grammars: others' prompts must not wait for them
  /// Those that take more than a moment, for which other grammars must not wait.
  WorkQueue compiling_slowly{lower_priority, 2};
  WorkQueue viewing{step_back};  ///< JSON of what is kept, for those who look: prompts must not wait for it
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);  ///< until end()
  EventHub hub;
  Api api;
  HttpServer http;
  asio::steady_timer drain_timer, reload_timer;
  check::ThreadRole io_thread;   ///< two are its own:
  std::shared_ptr<Model> model;  ///< null: not yet or no longer there
  bool draining = false, drains = false;
  std::atomic<bool> ending = false;
  std::thread thread;
};

/// A connection's failure stays within it. What comes here is the server's own: it cannot serve on, so the process
/// ends.
void Server::Impl::run() try {
  lower_priority();
  while (!run_io()) {
  }
} catch (const std::exception& e) {
  spdlog::critical("the server's network thread failed, and the process ends: {}", e.what());
  spdlog::default_logger()->flush();
  std::_Exit(EXIT_FAILURE);
}

/// False: the handler of an operation threw, and there is more to run. Beast parses and makes bodies grow in such
/// handlers, and asio takes memory for the next operation, outside the coroutine, which is destroyed together with the
/// handler: that closes a connection. The server's own coroutines begin again.
bool Server::Impl::run_io() {
  constexpr std::chrono::milliseconds kRest{1};  // others free memory meanwhile
  try {
    http.start();
    if (draining && !drains) asio::co_spawn(io, drain(), kRethrow);
    io.run();
    return true;
  } catch (const std::bad_alloc&) {
    SPDLOG_ERROR("a connection is closed: out of memory");
    std::this_thread::sleep_for(kRest);
  } catch (const std::length_error& e) {  // a trailer, say, that Beast's fields cannot hold
    spdlog::debug("connection closed: {}", e.what());
  }
  return false;
}

void Server::Impl::set_model(std::shared_ptr<Model> m) {
  COPPICE_ASSERT(io_thread.mine());
  model = std::move(m);
}

/// Tried again as long as there is no descriptor to read the files with: a key that was taken out of them must end.
void Server::Impl::reload_keys() {
  COPPICE_ASSERT(io_thread.mine());
  reload_timer.cancel();
  if (api.reload_keys() || draining) return;
  reload_timer.expires_after(std::chrono::seconds(1));
  reload_timer.async_wait([this](const boost::system::error_code& error) {
    if (!error) reload_keys();
  });
}

void Server::Impl::begin_drain() {
  COPPICE_ASSERT(io_thread.mine());
  if (std::exchange(draining, true)) return;
  reload_timer.cancel();
  asio::co_spawn(io, drain(), kRethrow);
}

asio::awaitable<void> Server::Impl::wait_until(auto done, double seconds) {
  const auto end = std::chrono::steady_clock::now() + duration(seconds);
  while (!done() && std::chrono::steady_clock::now() < end) {
    drain_timer.expires_after(std::chrono::milliseconds(20));
    co_await drain_timer.async_wait(kTuple);
  }
}

asio::awaitable<void> Server::Impl::drain() {
  constexpr double kClosingSeconds = 1.0;
  const While running(drains);
  // Of a request that is only half there the end is seen up to a tick late, and its client then is to be told.
  const double last_words_seconds = config.http.last_request_seconds + 0.3;
  api.set_draining();
  http.finish();
  const auto quiet = [this] { return !model || !http.busy(); };  // without a model nothing more will come of what runs
  const auto all_told = [this] { return !http.busy() && !http.lingering(); };
  const auto all_ended = [this] { return http.figures().connections == 0 && (!model || model->ended()); };
  const auto end_of_all = std::chrono::steady_clock::now() + duration(config.drain_seconds);
  if (model && config.storing_seconds > 0) model->settle(end_of_all);
  co_await wait_until(quiet, config.drain_seconds - config.storing_seconds);
  hub.shutdown();            // streams end with an error event, waiting requests with a 503
  if (model) model->stop();  // so do those who ask about the cache
  co_await wait_until(all_told, last_words_seconds);
  http.close();
  const std::chrono::duration<double> left = end_of_all - std::chrono::steady_clock::now();
  co_await wait_until(all_ended, kClosingSeconds + (config.storing_seconds > 0 ? std::max(left.count(), 0.0) : 0));
  // Neither a worker nor a step can be interrupted. The others would wait for them; a process that was told to end must
  // not.
  if (!all_ended() && config.owns_process) {
    SPDLOG_WARN("a request is still being tokenized, or a step computed: ending without it");
    spdlog::default_logger()->flush();
    std::_Exit(EXIT_SUCCESS);
  }
  end();
}

void Server::Impl::end() {
  http.close();
  if (model) model->stop();
  work.reset();
}

Server::Server(ServerConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}

Server::~Server() {
  if (impl_->thread.joinable()) {
    drain();
    join();
  }
}

std::uint16_t Server::port() const {
  return impl_->port;
}

std::string Server::url() const {
  const std::string& host = impl_->config.host;
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}", v6 ? "[" + host + "]" : host, impl_->port);
}

engine::EventSink Server::sink() {
  return impl_->hub.sink();
}

void Server::start() {
  impl_->thread = std::thread([this] { impl_->run(); });
}

void Server::set_progress(std::string stage, double fraction) {
  asio::post(impl_->io, [impl = impl_.get(), stage = std::move(stage), fraction]() mutable {
    impl->api.set_progress(std::move(stage), fraction);
  });
}

void Server::ready(std::shared_ptr<Model> model) {
  const std::shared_ptr<Model> stopped = model;
  asio::post(impl_->io, [impl = impl_.get(), model = std::move(model)]() mutable {
    impl->set_model(model);
    if (impl->draining) model->stop();  // drain() may be over: nobody else would
    impl->api.set_ready(std::move(model));
  });
  if (impl_->ending) stopped->stop();  // nobody may be left to run that post
}

void Server::model_ended() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->set_model({}); });
}

void Server::drain() {
  impl_->ending = true;  // a loader learns it at once, however busy the io thread is
  asio::post(impl_->io, [impl = impl_.get()] { impl->begin_drain(); });
}

void Server::reload_keys() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->reload_keys(); });
}

std::string Server::save_responses() const {
  return write_responses(impl_->api.responses());
}

std::future<void> Server::restore_responses(std::string_view text) {
  std::promise<void> done;
  std::future<void> there = done.get_future();
  asio::post(impl_->io, [impl = impl_.get(), responses = read_responses(text), done = std::move(done)]() mutable {
    impl->api.restore_responses(std::move(responses));
    done.set_value();
  });
  return there;
}

bool Server::ending() const {
  return impl_->ending;
}

void Server::join() {
  if (impl_->thread.joinable()) impl_->thread.join();
}

}  // namespace coppice::server
