// For this folder's .cpp files: what a ChatTemplate keeps.
#pragma once

#include <chat.h>

#include <mutex>

#include "text/chat_template.h"

namespace coppice::text {

struct ChatTemplate::Impl {
  common_chat_templates_ptr templates;
  common_chat_templates_ptr plain_form;  ///< of calls, where the template knows none; made when it is wanted
  std::mutex mutex;                      ///< the interpreter promises nothing about threads
};

}  // namespace coppice::text
