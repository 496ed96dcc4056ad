#include "cli/which_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "cli/local_models.h"
#include "cli/size_text.h"
#include "log/one_line.h"
#include "model/summary.h"
#include "port/memory.h"

namespace coppice::cli {

namespace {

constexpr const char* kHowToGetOne =
    "No model lies in the usual places, which 'coppice models' lists. To get one:\n"
    "  coppice pull llama3.2:1b                   # 1.3 GB, from Ollama's registry; then: coppice serve llama3.2:1b\n"
    "  coppice pull hf:Qwen/Qwen3-1.7B-GGUF       # 1.8 GB, from Hugging Face; then: coppice serve qwen3-1.7b\n"
    "or take any GGUF file: coppice serve FILE.gguf";

}  // namespace

std::string models_to_choose() {
  constexpr std::size_t kMost = 20;
  struct Line {
    std::string name, size;
  };
  std::vector<Line> lines;
  std::set<std::string> names;
  std::size_t left_out = 0, unfit = 0, width = 0;
  const std::size_t free = port::free_memory();
  for (const ModelPlace& place : local_models()) {
    for (const LocalModel& model : place.models) {
      if (!names.insert(model.name).second) continue;
      if (lines.size() == kMost) {
        ++left_out;
        continue;
      }
      const model::Summary summary = model::summarize(model.path.string());
      if (!summary.complaint.empty() || (free > 0 && summary.bytes > free)) {
        ++unfit;
        continue;
      }
      lines.push_back({log::one_line(model.name), size_text(summary.bytes)});
      width = std::max(width, lines.back().name.size());
    }
  }
  std::string text = lines.empty() ? kHowToGetOne : "On this machine are";
  for (const Line& line : lines) text += fmt::format("\n  {:{}}  {:>9}", line.name, width, line.size);
  if (left_out > 0) text += fmt::format("\n  and {} more, which 'coppice models' lists", left_out);
  if (unfit > 0) text += fmt::format("\n{} more cannot be served: 'coppice models' says why", unfit);
  if (!lines.empty()) text += fmt::format("\nFor example: coppice serve {}", lines.front().name);
  return text;
}

}  // namespace coppice::cli
