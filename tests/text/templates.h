// The chat templates in llama.cpp's sources.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace coppice::text {

/// Without ".jinja", in order. COPPICE_TEMPLATE=name: only that one.
inline std::vector<std::string> template_names() {
  std::vector<std::string> names;
  const char* one = std::getenv("COPPICE_TEMPLATE");
  for (const auto& entry : std::filesystem::directory_iterator(COPPICE_TEMPLATES)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".jinja" && (one == nullptr || name == one)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

inline std::string text_of_template(const std::string& name) {
  std::ifstream in(std::string(COPPICE_TEMPLATES) + "/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace coppice::text
