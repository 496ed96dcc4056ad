// What requests ask for in vain is said in the log: each field once, and no client writes lines of its own.
#include "server/api/base/ignored_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <vector>

#include "server/api/anthropic/anthropic_request.h"
#include "server/api/base/json_fields.h"

namespace coppice::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The log's lines while it lives.
class IgnoredFields : public ::testing::Test {
 protected:
  IgnoredFields() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", lines_));
  }
  ~IgnoredFields() override { spdlog::set_default_logger(before_); }
  std::vector<std::string> lines() { return lines_->last_formatted(); }

 private:
  std::shared_ptr<spdlog::logger> before_;
  std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> lines_ = std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(256);
};

void ask(const std::string& more) {
  parse_anthropic_request(
      parse_body(R"({"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}])" + more + "}"),
      {.n_vocab = 100, .max_choices = 8});
}

TEST_F(IgnoredFields, AreSaidOnceEach) {
  const std::string body = R"(, "context_management": {}, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "tools": [{"type": "web_search_20250305", "name": "web_search"}])";
  ask(body);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("/v1/messages: 'context_management' is ignored"),
                                   HasSubstr("'tool web_search_20250305'")));
  ask(body);
  ask(R"(, "metadata": {"user_id": "u"}, "service_tier": null)");
  EXPECT_THAT(lines(), SizeIs(3));  // a field that is null isn't there
  EXPECT_THAT(lines().back(), HasSubstr("'metadata'"));
}

TEST_F(IgnoredFields, ClientsWordsAreBounded) {
  log_ignored("/a", "x\n2026 a line of mine" + std::string(1000, 'x'));
  ASSERT_THAT(lines(), SizeIs(1));
  EXPECT_LT(lines().front().size(), 250U);
  EXPECT_THAT(lines().front(), HasSubstr("'x2026 a line of mine"));
  for (int i = 0; i < 200; ++i) log_ignored("/a", "tool " + std::to_string(i));
  EXPECT_LE(lines().size(), 64U);
}

TEST_F(IgnoredFields, SchemasThatAreNotHeldAreSaidOnceEach) {
  const std::string odd = R"(, "tools": [{"name": "odd", "input_schema": {"type": "object", "not": {"type": "string"}}},
    {"name": "dial", "input_schema": {"type": "object", "properties": {
      "number": {"type": "string", "format": "phone\n"}, "day": {"type": "string", "format": "date"},
      "all": {"type": "array", "items": {"type": "integer", "format": "int32"}, "uniqueItems": true}}}}])";
  ask(odd);
  ask(odd);
  EXPECT_THAT(lines(), ElementsAre(AllOf(HasSubstr("tool 'odd': its schema ("), HasSubstr("'not' at '#'")),
                                   HasSubstr("tool 'dial': format 'phone' is not held (said once)"),
                                   HasSubstr("tool 'dial': uniqueItems is not held")));
  for (int i = 0; i < 100; ++i)
    ask(R"(, "tools": [{"name": "odd)" + std::to_string(i) + R"(", "input_schema": {"not": {}}}])");
  EXPECT_LE(lines().size(), 64U);
}

}  // namespace
}  // namespace coppice::server
