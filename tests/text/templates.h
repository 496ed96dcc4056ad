// The chat templates in llama.cpp's sources.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "support/sanitized.h"

namespace coppice::text {

/// Whether template_names() has all of them.
inline bool all_templates() {
  return std::getenv("COPPICE_TEMPLATE") == nullptr && !test::kSanitized;
}

/// Without ".jinja", in order. COPPICE_TEMPLATE=name: only that one. Under sanitizers every third, and each process
/// draws the first: that takes ten times as long there, and faults of memory need no statistics.
inline std::vector<std::string> template_names() {
  std::vector<std::string> names;
  const char* one = std::getenv("COPPICE_TEMPLATE");
  for (const auto& entry : std::filesystem::directory_iterator(COPPICE_TEMPLATES)) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() == ".jinja" && (one == nullptr || name == one)) names.push_back(name);
  }
  std::ranges::sort(names);
  if (one != nullptr || all_templates()) return names;
  constexpr std::size_t kStep = 3;
  static const std::size_t first = std::random_device{}() % kStep;
  std::vector<std::string> some;
  for (std::size_t i = first; i < names.size(); i += kStep) some.push_back(names[i]);
  return some;
}

inline std::string text_of_template(const std::string& name) {
  std::ifstream in(std::string(COPPICE_TEMPLATES) + "/" + name + ".jinja");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace coppice::text
