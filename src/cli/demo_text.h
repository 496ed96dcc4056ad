// The text of the demo: one long system prompt that all requests share, and a question for each of them.
#pragma once

#include <array>
#include <string_view>

namespace coppice::cli {

/// The handbook of a museum's visitor desk, about 1,500 tokens of English, written for this demo.
extern const std::string_view kDemoSystemPrompt;

/// Eight questions on it, none a beginning of another.
extern const std::array<std::string_view, 8> kDemoQuestions;

}  // namespace coppice::cli
