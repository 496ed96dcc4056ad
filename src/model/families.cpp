#include "model/families.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "model/load_error.h"

namespace coppice::model {

namespace {

struct Family {
  std::string_view architecture;
  FamilyReader read;
};

constexpr std::array kFamilies{
    Family{"llama", read_llama},
};

}  // namespace

std::vector<std::string_view> known_architectures() {
  std::vector<std::string_view> names;
  for (const Family& f : kFamilies) names.push_back(f.architecture);
  return names;
}

ModelSpec read_spec(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture").value_or("");
  for (const Family& f : kFamilies) {
    if (f.architecture == architecture) return f.read(file);
  }
  throw LoadError(fmt::format("{} has the architecture '{}', which is not known; known: {}", file.path(), architecture,
                              fmt::join(known_architectures(), ", ")));
}

}  // namespace coppice::model
