// A dialect of our own: adding one takes this file and a path, and nothing in http/, jobs/ or the engine.
#include "server/api/base/dialect.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/api/api.h"
#include "server/api/base/json_fields.h"
#include "server/collecting_writer.h"
#include "server/fake_model.h"

namespace coppice::testing {
namespace {

using sampling::Finish;

/// A stream is a line for each piece, a whole answer one line.
class PlainAnswer final : public server::Answer {
 public:
  PlainAnswer(server::AnswerHead head, bool stream) : head_(std::move(head)), stream_(stream) {}
  std::string delta(server::Delta&& delta) override {
    if (stream_) return delta.text + "\n";
    text_ += delta.text;
    return "";
  }
  std::string end(const engine::Usage& usage, server::CacheReportList) override {
    return text_ + "(" + head_.model + ", " + std::to_string(usage.completion_tokens) + " tokens)\n";
  }
  std::string error(const server::RequestError& error) override {
    return std::string("broke off: ") + error.what() + "\n";
  }
  std::size_t bytes() const override { return text_.size(); }

 private:
  server::AnswerHead head_;
  bool stream_;
  std::string text_;
};

/// {"ask": "text", "live": true}, or {"asks": ["text"], "times": 1, "salt": "text"}; without any limit of its own
class PlainDialect final : public server::Dialect {
 public:
  server::GenerationRequest parse(const server::JsonObject& body, const server::RequestLimits&) const override {
    const server::JsonFields f(body);
    server::GenerationRequest request;
    request.input_field = "ask";
    if (f.has("asks")) {
      for (const auto& ask : f.find("asks")->as_array()) request.prompts.emplace_back(std::string(ask.as_string()));
    } else {
      request.messages = {{.role = "user", .content = {{f.string("ask").value_or("")}}}};
    }
    request.n = static_cast<int>(f.integer("times", 1, 5000).value_or(1));
    request.cache_salt = f.string("salt").value_or("");
    request.stream = f.boolean("live").value_or(false);
    return request;
  }
  std::unique_ptr<server::Answer> begin(const server::GenerationTerms& terms, const sampling::SamplingParams&,
                                        server::AnswerHead head) const override {
    return std::make_unique<PlainAnswer>(std::move(head), terms.stream);
  }
  std::string_view id_prefix() const override { return "plain-"; }
  std::string error(const server::RequestError& error) const override {
    return std::string("sorry: ") + error.what() + "\n";
  }
};

class DialectTest : public ::testing::Test {
 protected:
  DialectTest() { api_.add_dialect("/plain", std::make_unique<PlainDialect>()); }

  CollectingWriter post(
      const std::string& body, FakeModel::Script script,
      std::function<void(const std::string&)> during = [](const std::string&) {}) {
    model_ = std::make_shared<FakeModel>(hub_.sink(), std::move(script));
    api_.set_ready(model_);
    server::HttpRequest request{.method = "POST", .path = "/plain", .body = body};
    CollectingWriter writer;
    writer.during = std::move(during);
    boost::asio::co_spawn(io_, api_.handle(request, writer), boost::asio::detached);
    io_.run();
    io_.restart();
    return writer;
  }

  boost::asio::io_context io_;
  server::WorkQueue worker_, compiling_, viewing_;
  server::EventHub hub_{io_};
  server::Api api_{{.names = {"the-model", ""}, .ping_seconds = 0}, hub_, worker_, {compiling_, compiling_}, viewing_};
  std::shared_ptr<FakeModel> model_;
};

TEST_F(DialectTest, AnswersAtOnce) {
  const auto out = post(R"({"ask": "hi"})", words({"Hel", "lo "}));
  EXPECT_EQ(out.reply.status, 200);
  EXPECT_EQ(out.text, "Hello (the-model, 2 tokens)\n");
  EXPECT_FALSE(out.ended);
  const auto prompt = model_->prompt(0);
  EXPECT_EQ(std::string(prompt.begin(), prompt.end()), "user: hi\nassistant: ");
}

TEST_F(DialectTest, Streams) {
  const auto out = post(R"({"ask": "hi", "live": true})", words({"Hello"}));
  EXPECT_EQ(out.text, "Hello\n(the-model, 1 tokens)\n");
  EXPECT_TRUE(out.ended);
}

TEST_F(DialectTest, WordsItsErrors) {
  auto out = post(R"({"ask": 7})", {});
  EXPECT_EQ(out.reply.status, 400);
  EXPECT_EQ(out.text, "sorry: 'ask': must be a string\n");
  out = post(R"({"ask": "hi"})", [](const engine::Request& r) {
    return std::vector<std::vector<engine::Event>>{{refusal(r.id, engine::Refusal::kTooLong, "too long")}};
  });
  EXPECT_EQ(out.text, "sorry: too long\n");
  const auto begin = [](const engine::Request& r) {
    return std::vector<std::vector<engine::Event>>{{piece(r.id, "Hel")}};
  };
  out = post(R"({"ask": "hi", "live": true})", begin, [this](const std::string& where) {
    if (where == "begin") model_->emit({last(model_->wait_submitted(0), "lo", Finish::kError, {})});
  });
  EXPECT_EQ(out.text, "Hel\nbroke off: The model failed.\n");
  EXPECT_TRUE(out.ended);
}

/// Whatever its parser lets through.
TEST_F(DialectTest, KeepsToTheLimitsOfAllDialects) {
  const auto choices = [](int prompts, int n) {
    std::string asks = R"("a")";
    for (int i = 1; i < prompts; ++i) asks += R"(,"a")";
    return R"({"asks": [)" + asks + R"(], "times": )" + std::to_string(n) + "}";
  };
  const auto salt = [](std::size_t bytes) { return R"({"ask": "hi", "salt": ")" + std::string(bytes, 's') + R"("})"; };
  static_assert(server::kMaxPrompts * 8 == server::kMaxChoicesPerRequest);
  EXPECT_EQ(post(choices(server::kMaxPrompts, 8), words({"x"})).reply.status, 200);
  auto out = post(choices(server::kMaxPrompts, 9), words({"x"}));
  EXPECT_EQ(out.reply.status, 400);
  EXPECT_EQ(out.text, "sorry: 'ask': prompts times 'n' must be at most 1024\n");
  EXPECT_EQ(post(salt(server::kMaxSaltBytes), words({"x"})).reply.status, 200);
  out = post(salt(server::kMaxSaltBytes + 1), words({"x"}));
  EXPECT_EQ(out.reply.status, 400);
  EXPECT_EQ(out.text, "sorry: 'cache_salt': must be at most 256 bytes\n");
}

/// By the connection, which knows no dialects: a body that is too large, for instance.
TEST_F(DialectTest, WordsWhatIsRefusedBeforeItsBodyIsThere) {
  const server::RequestError error(413, "too large", "", "body_too_large");
  EXPECT_EQ(api_.refuse(error, "POST", "/plain").body, "sorry: too large\n");
  EXPECT_EQ(api_.refuse(error, "POST", "/nowhere").body, api_.refuse(error, "POST", "/v1/completions").body);
}

}  // namespace
}  // namespace coppice::testing
