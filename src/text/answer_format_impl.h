// For this folder's .cpp files: AnswerFormat in the words of llama.cpp's chat library.
#pragma once

#include <chat.h>

#include "text/answer_format.h"

namespace coppice::text {

struct AnswerFormat::Impl {
  common_chat_parser_params params;
};

}  // namespace coppice::text
