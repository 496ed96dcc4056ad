// An answer as a client gets it, read in pieces.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "text/answer_format.h"

namespace coppice::text {

struct Answer {
  std::string content, reasoning;
  std::vector<CallPart> calls;
  bool operator==(const Answer& other) const {
    return content == other.content && calls.size() == other.calls.size() &&
           std::ranges::equal(calls, other.calls, [](const CallPart& a, const CallPart& b) {
             return a.name == b.name && a.arguments == b.arguments;
           });
  }
};

inline Answer read_answer(const std::shared_ptr<const AnswerFormat>& format, const std::string& text,
                          std::size_t piece) {
  AnswerReader reader(format);
  Answer all;
  const auto take = [&](AnswerParts&& parts) {
    all.content += parts.content;
    all.reasoning += parts.reasoning;
    for (CallPart& part : parts.calls) {
      if (part.index >= all.calls.size()) all.calls.resize(part.index + 1);
      all.calls[part.index].name += part.name;
      all.calls[part.index].arguments += part.arguments;
    }
  };
  for (std::size_t at = 0; at < text.size(); at += piece) take(reader.push(text.substr(at, piece)));
  take(reader.finish());
  return all;
}

}  // namespace coppice::text
