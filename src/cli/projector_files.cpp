#include "cli/projector_files.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <string_view>
#include <system_error>
#include <vector>

namespace coppice::cli {

namespace fs = std::filesystem;

namespace {

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_projector(const fs::path& file) {
  return in_lower_case(file.filename().string()).contains("mmproj");
}

/// How exact its weights are, by its name: 0 is best.
int inexactness(const fs::path& file) {
  const std::string name = in_lower_case(file.stem().string());
  int rank = 0;
  for (const char* format : {"f32", "bf16", "f16", "q8_0"}) {
    // What doesn't say its format is mostly f16.
    if (name.ends_with(format)) return rank;
    ++rank;
  }
  return 2;
}

std::vector<fs::path> gguf_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (in_lower_case(it->path().extension().string()) == ".gguf") files.push_back(it->path());
  std::ranges::sort(files);
  return files;
}

}  // namespace

std::string bare_name(const fs::path& file) {
  static const std::regex part("-[0-9]{5}-of-[0-9]{5}$"), projector("mmproj[-_.]?"),
      format("(^|[-_.])(ud-)?(bf16|f16|f32|fp16|fp8|mxfp4|nvfp4|i?q[0-9][a-z0-9_]*|tq[0-9]_[0-9])(_[a-z]+)?$");
  std::string name = in_lower_case(file.stem().string());
  for (const std::regex* each : {&part, &projector, &format}) name = std::regex_replace(name, *each, "");
  while (!name.empty() && std::string_view("-_.").contains(name.back())) name.pop_back();
  return name == "model" ? "" : name;
}

fs::path find_projector(const LocalModel& model) {
  if (!model.projector.empty()) return model.projector;
  const fs::path folder = model.path.has_parent_path() ? model.path.parent_path() : fs::path(".");
  const std::string own = bare_name(model.path);
  const std::vector<fs::path> files = gguf_files(folder);
  const bool one_model =
      std::ranges::all_of(files, [&](const fs::path& file) { return is_projector(file) || bare_name(file) == own; });
  fs::path best;
  for (const fs::path& file : files) {
    if (!is_projector(file)) continue;
    const std::string name = bare_name(file);
    if (name != own && !(one_model && name.empty())) continue;
    if (best.empty() || inexactness(file) < inexactness(best)) best = file;
  }
  return best;
}

}  // namespace coppice::cli
