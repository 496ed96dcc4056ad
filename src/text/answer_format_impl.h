// For this folder's .cpp files: AnswerFormat in the words of llama.cpp's chat library.
#pragma once

#include <chat.h>

#include "text/answer_format.h"
#include "text/thought_splitter.h"

namespace coppice::text {

struct AnswerFormat::Impl {
  common_chat_parser_params params;
  bool one_call = false;  ///< of several the first one counts
  ThoughtTags thoughts;   ///< with an end: there is nothing to read but these, and no parser
};

}  // namespace coppice::text
