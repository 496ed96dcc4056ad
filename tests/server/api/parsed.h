// Bodies of OpenAI's API through the parser, and what it must refuse: for tests of fields.
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>

#include "server/api/base/json_fields.h"
#include "server/api/openai/openai_request.h"
#include "server/base/request_error.h"

#define MESSAGES R"("messages":[{"role":"user","content":"hi"}])"

namespace coppice::server {

inline constexpr RequestLimits kLimits{.n_vocab = 100, .max_choices = 8};

/// `more`: further fields, with a comma before them.
inline GenerationRequest chat(const std::string& more = "") {
  return parse_openai_request(Endpoint::kChat, parse_body("{" MESSAGES + more + "}"), kLimits);
}
inline GenerationRequest complete(const std::string& more = "") {
  return parse_openai_request(Endpoint::kCompletions, parse_body(R"({"prompt": "hi")" + more + "}"), kLimits);
}

struct BadField {
  std::string body;   ///< the whole body
  const char* param;  ///< what the error must name
  const char* code = "invalid_value";
};
inline void PrintTo(const BadField& bad, std::ostream* out) {
  *out << bad.body;
}

inline void expect_refused(Endpoint endpoint, const BadField& bad) {
  try {
    parse_openai_request(endpoint, parse_body(bad.body), kLimits);
    FAIL() << "taken: " << bad.body;
  } catch (const RequestError& e) {
    EXPECT_EQ(e.status(), 400) << e.what();
    EXPECT_EQ(e.field(), bad.param) << e.what();
    EXPECT_EQ(e.code(), bad.code) << e.what();
    if (!e.field().empty()) EXPECT_NE(std::string(e.what()).find(bad.param), std::string::npos) << e.what();
  }
}

/// Of chats; openai_request_test.cpp has what is done with each.
class BadFields : public ::testing::TestWithParam<BadField> {};

}  // namespace coppice::server
