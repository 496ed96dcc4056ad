#include "model/metadata.h"

#include <cmath>

namespace coppice::model {

Metadata::Metadata(const GgufFile& file) : file_(file), architecture_(file.text("general.architecture").value_or("")) {}

int Metadata::checked(std::string_view name, std::int64_t value, int min, std::int64_t max) const {
  if (value < min || value > max) refuse("metadata {} = {} is out of range", key(name), value);
  return static_cast<int>(value);
}

float Metadata::checked(std::string_view name, double value) const {
  const auto x = static_cast<float>(value);
  if (!std::isfinite(x)) refuse("metadata {} = {} is out of range", key(name), value);
  return x;
}

int Metadata::size(std::string_view name, std::int64_t max) const {
  return checked(name, file_.require_integer(key(name)), 1, max);
}

int Metadata::size(std::string_view name, std::int64_t max, std::int64_t otherwise, int min) const {
  return checked(name, file_.integer(key(name)).value_or(otherwise), min, max);
}

std::vector<int> Metadata::sizes(std::string_view name, int n, std::int64_t max, std::optional<std::int64_t> otherwise,
                                 int min) const {
  const auto values = list(name, n);
  const auto count = static_cast<std::size_t>(n);
  if (!values) return std::vector<int>(count, otherwise ? size(name, max, *otherwise) : size(name, max));
  std::vector<int> sizes;
  for (std::size_t i = 0; i < count; ++i) sizes.push_back(checked(name, (*values)[i], min, max));
  return sizes;
}

float Metadata::number(std::string_view name) const {
  return checked(name, file_.require_real(key(name)));
}

float Metadata::number(std::string_view name, float otherwise) const {
  const auto value = file_.real(key(name));
  return value ? checked(name, *value) : otherwise;
}

float Metadata::factor(std::string_view name, float otherwise) const {
  const float value = number(name, 0.0F);
  return value == 0.0F ? otherwise : value;
}

bool Metadata::truth(std::string_view name, bool otherwise) const {
  return file_.truth(key(name)).value_or(otherwise);
}

std::string Metadata::text(std::string_view name, std::string_view otherwise) const {
  return file_.text(key(name)).value_or(std::string(otherwise));
}

std::optional<std::vector<std::int64_t>> Metadata::list(std::string_view name, int n) const {
  if (!file_.is_array(key(name))) return std::nullopt;
  auto values = file_.integers(key(name));
  if (static_cast<int>(values->size()) < n) {
    refuse("metadata {} has {} values where {} are needed", key(name), values->size(), n);
  }
  return values;
}

}  // namespace coppice::model
