// Delta: news of one choice (a sample of a prompt), of one step or of several.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sampling/generation.h"

namespace coppice::server {

struct Delta {
  int choice = 0;
  std::string text;  ///< valid UTF-8
  std::vector<sampling::LogprobEntry> logprobs;
  std::optional<sampling::Finish> finish;  ///< kStop, kLength or kTimeout: other ends are errors of the whole job
};

}  // namespace coppice::server
