// For this folder's .cpp files: AnswerFormat in the words of llama.cpp's chat library.
#pragma once

#include <chat.h>

#include "text/answer_format.h"
#include "text/thought_splitter.h"

namespace coppice::text {

struct AnswerFormat::Impl {
  common_chat_parser_params params;
  bool one_call = false;       ///< of several the first one counts
  std::string text, text_end;  ///< marks around the answer's text that the parser may leave there; empty: none
  bool continued = false;      ///< what the parser reads of an empty answer is the client's own
  ThoughtTags thoughts;        ///< with an end: these are read first. Without a parser there is nothing else to read
};

}  // namespace coppice::text
