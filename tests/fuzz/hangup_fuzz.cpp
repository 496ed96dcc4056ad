// When clients leave: an input is a script for clients of the server, with the real engine behind it on the fake
// executor.
//
// The first four bytes pick the set-up. Then come actions, a letter each, with one byte for each operand; '0' stands
// for 0:
//   s  a client comes and asks: shared beginning, its length, own end, its length, answer's length, kind, priority
//   p  the same, but only some sixteenths of the request are sent: ..., how many      r  the rest follows: whose
//   c  a client closes: which (from the latest back)      w  it closes its sending side
//   g  it asks for more, too early
//   .  the engine's step alone      ,  the server's work alone      +  8 times both
//   x  a forward fails: how many from now
//   d  the server drains      h  the drain's time is up      q  the engine stops
// and any other byte is a step and then the server's work. At the end every client that stayed must have its whole
// answer and the right one, unless the script had a reason; and no session, request, body or block is left.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "fuzz/fuzz.h"
#include "fuzz/server_world.h"
#include "server/engine_on_fakes.h"
#include "server/http_client.h"

namespace coppice::testing {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxClients = 16;
constexpr int kMaxSteps = 200;
constexpr int kContext = 120;

HarnessConfig read_config(Script& in) {
  const auto groups = static_cast<Groups>(in.number(3));
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
  return {.groups = groups,
          .block_size = 4,
          .num_blocks = 2 + n_groups * (12 + in.number(100)),
          .max_batch = 4 + in.number(6),
          .step_tokens = 1 + in.number(60),
          .max_extend = 64,
          .context_length = kContext};
}

struct Asked {
  Prompt prompt;
  int max_tokens = 0;
  int n = 1;
  bool stream = false;
};

struct Client {
  explicit Client(ServerWorld& world) : peer(world.connect()), http(HttpClient::Connected{peer.fd}) {}
  ServerWorld::Peer peer;
  HttpClient http;
  Asked asked;
  std::string unsent;
  int more = 0;       ///< further requests, for /health
  bool gone = false;  ///< as far as the server can tell
};

class Run {
 public:
  explicit Run(Script in)
      : in_(in), config_(read_config(in_)), model_(std::make_shared<EngineOnFakes>(world_.hub.sink(), config_)) {
    world_.api.set_ready(model_);
  }

  void run() {
    while (!in_.empty() && steps_ < kMaxSteps) act(in_.letter());
    check_cancelled();
    for (const auto& client : clients_) send_rest(*client);
    finish();
    for (const auto& client : clients_) {
      if (!client->gone) check_answers(*client);
    }
    for (const auto& client : clients_) client->http.close();
    finish();
    check_nothing_left();
  }

 private:
  void act(char action) {
    switch (action) {
      case 's':
        return come(16);
      case 'p':
        return come(0);
      case 'r':
        return with_client([this](Client& client) { send_rest(client); });
      case 'c':
        return with_client([](Client& client) {
          client.http.close();
          client.gone = true;
        });
      case 'w':
        return with_client([](Client& client) {
          client.http.shut_down_sending();
          client.gone = true;
        });
      case 'g':
        return with_client([this](Client& client) {
          if (!client.unsent.empty()) return;
          send(client, get_request("/health"));
          ++client.more;
        });
      case '.':
        step();
        return;
      case ',':
        return settle();
      case 'x':
        return model_->executor().fail_at(static_cast<int>(model_->executor().steps().size()) + in_.number(16));
      case 'q':
        ending_ = true;
        return model_->stop();
      case 'h':
      case 'd':
        world_.api.set_draining();
        if (action == 'h') world_.hub.shutdown();
        ending_ = true;
        return;
      default:
        for (int i = action == '+' ? 8 : 1; i > 0; --i) {
          step();
          settle();
        }
    }
  }

  /// Does something with one that has not left.
  void with_client(auto&& act) {
    if (clients_.empty()) return;
    const int back = in_.number(static_cast<int>(clients_.size()));
    Client& client = *clients_[clients_.size() - 1 - static_cast<std::size_t>(back)];
    if (!client.gone) act(client);
  }

  static Prompt text(int number, int n) {
    std::mt19937_64 random(static_cast<std::uint64_t>(number));
    return random_prompt(random, static_cast<std::size_t>(n));
  }

  /// sixteenths: of the request that are sent; 0: the script says.
  void come(int sixteenths) {
    if (clients_.size() == kMaxClients) return;
    Client& client = *clients_.emplace_back(std::make_unique<Client>(world_));
    Asked& asked = client.asked;
    const int beginning = in_.number(4);
    asked.prompt = text(beginning, 1 + in_.number(60));
    const int end = in_.number(16);
    asked.prompt = asked.prompt + text(100 + end, in_.number(20));
    asked.max_tokens = 1 + in_.number(40);
    const int kind = in_.number(16);
    asked.n = 1 + kind % 4;
    asked.stream = (kind & 4) != 0;
    const Json body = {{"prompt", asked.prompt},
                       {"max_tokens", asked.max_tokens},
                       {"n", asked.n},
                       {"stream", asked.stream},
                       {"seed", seed_of(client)},
                       {"cache_salt", (kind & 8) != 0 ? "other" : ""},
                       {"priority", in_.number(4) - 2}};
    client.unsent = post_request("/v1/completions", body.dump());
    if (sixteenths == 0) sixteenths = in_.number(16);
    const std::string part = client.unsent.substr(0, client.unsent.size() * static_cast<std::size_t>(sixteenths) / 16);
    client.unsent.erase(0, part.size());
    send(client, part);
  }

  std::uint64_t seed_of(const Client& client) const {
    const auto at = std::ranges::find(clients_, &client, &std::unique_ptr<Client>::get);
    return static_cast<std::uint64_t>(at - clients_.begin()) * 100;
  }

  void send(Client& client, const std::string& bytes) {
    sent_ = true;
    try {
      client.http.send(bytes);
    } catch (const std::runtime_error&) {  // the server has closed: the answer says why
    }
  }
  void send_rest(Client& client) {
    if (!client.gone) send(client, std::exchange(client.unsent, ""));
  }

  void settle() {
    if (std::exchange(sent_, false)) {
      world_.settle();
    } else {
      world_.settle_without_worker();
    }
  }

  bool step() {
    ++steps_;
    const bool more = model_->engine().step();
    const std::string wrong = model_->engine().cache().check_integrity();
    if (!wrong.empty()) finding(wrong);
    if (!model_->executor().faults().empty()) finding(model_->executor().faults().front());
    return more;
  }

  /// Who has left leaves nothing open.
  void check_cancelled() {
    settle();
    step();
    const auto s = model_->snapshot();
    const auto stay = std::ranges::count(clients_, false, [](const auto& client) { return client->gone; });
    if (s.running_requests + s.waiting_requests > stay) finding("a request outlives its client");
  }

  void finish() {
    settle();
    for (int i = 0, idle = 0; idle < 2; ++i) {
      idle = step() ? 0 : idle + 1;
      settle();
      if (i == 20'000) finding("it does not come to an end");
    }
  }

  bool failed() { return std::ranges::any_of(model_->executor().steps(), &FakeExecutor::StepLog::failed); }

  void check_answers(Client& client) try {
    HttpAnswer answer = client.http.receive();
    check_answer(client, answer);
    for (; client.more > 0 && answer.headers["connection"] != "close"; --client.more) {
      answer = client.http.receive();
      if (answer.status != 200 && !ending_) finding(fmt::format("/health is {}", answer.status));
    }
  } catch (const std::exception& e) {
    finding(fmt::format("no whole answer: {}", e.what()));
  }

  void check_answer(const Client& client, const HttpAnswer& answer) {
    switch (answer.status) {
      case 200:
        return client.asked.stream ? check_stream(client, answer.events()) : check_whole(client, answer.json());
      case 400:
        if (fits(client.asked)) finding("refused, but it fits: " + answer.body);
        return;
      case 500:
        if (!failed()) finding("no step failed: " + answer.body);
        return;
      case 503:
        if (!ending_) finding("nothing ends: " + answer.body);
        return;
      default:
        finding(fmt::format("status {}: {}", answer.status, answer.body));
    }
  }

  void check_whole(const Client& client, const Json& body) {
    if (std::ssize(body["choices"]) != client.asked.n) finding("choices are missing");
    for (const Json& choice : body["choices"]) check_text(client, choice["index"], choice["text"], true);
  }

  void check_stream(const Client& client, const std::vector<std::string>& events) {
    std::vector<std::string> texts(static_cast<std::size_t>(client.asked.n));
    bool failure = false;
    for (const std::string& event : events) {
      if (event == "[DONE]") continue;
      const Json json = Json::parse(event);
      if ((failure = json.contains("error"))) break;
      for (const Json& choice : json["choices"]) texts.at(choice["index"]) += choice["text"].get<std::string>();
    }
    if (failure && !failed() && !ending_) finding("an error for no reason: " + events.back());
    if (!failure && (events.empty() || events.back() != "[DONE]")) finding("a stream without an end");
    for (std::size_t i = 0; i < texts.size(); ++i) check_text(client, static_cast<int>(i), texts[i], !failure);
  }

  void check_text(const Client& client, int sample, const std::string& text, bool whole) {
    const Asked& asked = client.asked;
    const std::string right =
        model_->expected_text(asked.prompt, seed_of(client) + static_cast<std::uint64_t>(sample), asked.max_tokens);
    if (whole && fits(asked) ? text != right : !right.starts_with(text))
      finding(fmt::format("sample {} is '{}', not '{}'", sample, text, right));
  }

  /// All of the answer, with nobody else there.
  bool fits(const Asked& asked) const {
    const auto longest = static_cast<std::int32_t>(asked.prompt.size()) + asked.max_tokens;
    const auto& cache = model_->engine().cache();
    return longest <= kContext && asked.n <= config_.max_batch &&
           asked.n * cache.blocks_needed(longest + 2 * config_.block_size, 1) <= cache.stats().total;
  }

  void check_nothing_left() {
    for (const auto& client : clients_) {
      if (!*client->peer.ended) finding("a session outlives its client");
    }
    if (world_.bodies.used() != 0) finding("a body was not given back");
    if (world_.hub.open() != 0) finding("a request was not cancelled");
    const auto s = model_->snapshot();
    if (s.cache.in_use != 0 || s.cache.reserved != 0 || s.cache.sequences != 0) finding("blocks are held");
    if (s.running_requests + s.waiting_requests != 0) finding("requests are open");
    if (s.requests_submitted != s.requests_finished + s.requests_cancelled + s.requests_refused + s.requests_failed)
      finding("requests are lost in the figures");
  }

  Script in_;
  HarnessConfig config_;
  ServerWorld world_;
  std::shared_ptr<EngineOnFakes> model_;
  std::vector<std::unique_ptr<Client>> clients_;
  int steps_ = 0;
  bool sent_ = false;  ///< bytes, since the server's last work
  bool ending_ = false;
};

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  coppice::testing::Run(coppice::testing::Script({data, size})).run();
  return 0;
}
