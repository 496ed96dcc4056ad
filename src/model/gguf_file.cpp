#include "model/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "model/load_error.h"

namespace coppice::model {

namespace {

/// A whole number that may be missing, and counts as missing where it makes no sense.
std::int64_t whole(const GgufHeader& header, std::string_view key, std::int64_t otherwise) {
  constexpr std::int64_t kMost = 1 << 20;
  const auto it = header.values.find(key);
  const auto* n = it == header.values.end() ? nullptr : std::get_if<std::int64_t>(&it->second);
  return n && *n >= 0 && *n <= kMost ? *n : otherwise;
}

/// What the parts of a split model say of themselves.
struct SplitKeys {
  std::int64_t number, count, tensors;  ///< from 0; 1: not split; of all parts, -1: unknown

  explicit SplitKeys(const GgufHeader& header)
      : number(whole(header, "split.no", 0)),
        count(std::max<std::int64_t>(1, whole(header, "split.count", 1))),
        tensors(whole(header, "split.tensors.count", -1)) {}
};

std::string part_ending(std::int64_t number, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

}  // namespace

GgufFile::GgufFile(const std::string& path) : path_(path) {
  GgufHeader first = open_part(path);
  const SplitKeys split(first);
  values_ = std::move(first.values);
  take_tensors(std::move(first.tensors));
  if (split.number != 0) {
    throw LoadError(fmt::format("{} is part {} of {}; give the first part, whose name ends with {}", path,
                                split.number + 1, split.count, part_ending(0, split.count)));
  }
  if (split.count > 1) open_other_parts(split.count, split.tensors);
}

GgufHeader GgufFile::open_part(const std::string& path) {
  ModelFile& part = parts_.emplace_back(path);
  GgufHeader header = read_gguf_header(part.file.bytes(), path);
  part.metadata_end = header.size;
  for (TensorInfo& t : header.tensors) t.file = parts() - 1;
  return header;
}

void GgufFile::open_other_parts(std::int64_t count, std::int64_t n_tensors) {
  const std::string ending = part_ending(0, count);
  if (!path_.ends_with(ending)) {
    throw LoadError(
        fmt::format("{} is the first of {} parts, but its name does not end with {}: the others can't be found", path_,
                    count, ending));
  }
  const std::string stem = path_.substr(0, path_.size() - ending.size());
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string path = stem + part_ending(i, count);
    if (std::error_code error; !std::filesystem::exists(path, error)) {
      throw LoadError(fmt::format("part {} of {} of the model is missing: {}", i + 1, count, path));
    }
    GgufHeader header = open_part(path);
    const SplitKeys split(header);
    if (split.number != i || split.count != count) {
      throw LoadError(fmt::format("{} is part {} of {} by its header, where part {} of {} is needed", path,
                                  split.number + 1, split.count, i + 1, count));
    }
    if (split.tensors != n_tensors) {
      throw LoadError(fmt::format("{} is a part of another model than {}: that one has {} tensors, this one {}", path,
                                  path_, n_tensors, split.tensors));
    }
    take_tensors(std::move(header.tensors));
  }
  if (n_tensors >= 0 && std::cmp_not_equal(tensors_.size(), n_tensors)) {
    throw LoadError(fmt::format("{} is one of several parts with {} tensors, and {} are there: is one another model's?",
                                path_, n_tensors, tensors_.size()));
  }
}

void GgufFile::take_tensors(std::vector<TensorInfo> tensors) {
  for (TensorInfo& t : tensors) {
    const auto [place, is_new] = index_.emplace(t.name, static_cast<int>(tensors_.size()));
    if (!is_new && tensors_[static_cast<std::size_t>(place->second)].file != t.file) {
      throw LoadError(fmt::format("{} has the tensor {} in two of its parts: is one another model's?", path_, t.name));
    }
    if (!is_new) throw LoadError(fmt::format("{} is damaged: it holds tensor {} twice", path_, t.name));
    tensors_.push_back(std::move(t));
  }
}

std::string GgufFile::name() const {
  constexpr std::size_t kPart = std::string_view("-00001-of-00003").size();
  std::string name = std::filesystem::path(path_).stem().string();
  if (parts() > 1) name.resize(name.size() - kPart);
  return name;
}

std::vector<ModelPart> GgufFile::files() const {
  std::vector<ModelPart> files;
  for (const ModelFile& part : parts_) files.push_back({part.path, part.file.identity()});
  return files;
}

bool GgufFile::was_written() const {
  return std::ranges::any_of(parts_, [](const ModelFile& part) {
    const FileIdentity then = part.file.identity(), now = identity_of(part.path);
    return now.device == then.device && now.inode == then.inode && now != then;
  });
}

std::size_t GgufFile::size() const {
  std::size_t bytes = 0;
  for (const ModelFile& part : parts_) bytes += part.file.bytes().size();
  return bytes;
}

int GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? -1 : it->second;
}

std::vector<int> GgufFile::split(int tensor, std::span<const std::int64_t> sizes) {
  const TensorInfo whole = tensors_[static_cast<std::size_t>(tensor)];
  const bool matrices = whole.shape.size() == 3;
  const auto n = static_cast<std::size_t>(matrices ? whole.shape[2] : 1);
  const std::size_t matrix_bytes = whole.bytes / n;
  const std::size_t dimension = matrices ? 1 : whole.shape.size() - 1;
  std::vector<int> parts;
  std::size_t offset = whole.offset;
  for (const std::int64_t size : sizes) {
    TensorInfo part = whole;
    part.shape[dimension] = size;
    part.offset = offset;
    const std::size_t bytes =
        matrix_bytes / static_cast<std::size_t>(whole.shape[dimension]) * static_cast<std::size_t>(size);
    offset += bytes;
    part.bytes = (n - 1) * matrix_bytes + bytes;
    if (n > 1) part.stride = matrix_bytes;
    if (parts.empty()) {
      tensors_[static_cast<std::size_t>(tensor)] = part;
      parts.push_back(tensor);
    } else {
      part.name += fmt::format(" (part {})", parts.size() + 1);
      parts.push_back(static_cast<int>(tensors_.size()));
      tensors_.push_back(std::move(part));
    }
  }
  return parts;
}

const GgufValue* GgufFile::value(std::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

void GgufFile::wrong_type(std::string_view key, std::string_view wanted) const {
  throw LoadError(fmt::format("{}: metadata {} is not {}", path_, key, wanted));
}

std::optional<std::string> GgufFile::text(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return std::nullopt;
  if (const auto* s = std::get_if<std::string_view>(v)) return std::string(*s);
  wrong_type(key, "a string");
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return std::nullopt;
  if (const auto* n = std::get_if<std::int64_t>(v)) return *n;
  wrong_type(key, "a whole number");
}

std::optional<double> GgufFile::real(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<double>(v)) return *x;
  wrong_type(key, "a number");
}

std::optional<bool> GgufFile::truth(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<bool>(v)) return *x;
  wrong_type(key, "true or false");
}

bool GgufFile::is_array(std::string_view key) const {
  const GgufValue* v = value(key);
  return v && std::holds_alternative<GgufArray>(*v);
}

std::optional<std::vector<std::int64_t>> GgufFile::integers(std::string_view key) const {
  const GgufValue* v = value(key);
  if (!v) return std::nullopt;
  if (const auto* x = std::get_if<GgufArray>(v); x && !x->elements.empty()) return x->elements;
  wrong_type(key, "a list of whole numbers");
}

std::int64_t GgufFile::require_integer(std::string_view key) const {
  if (const auto n = integer(key)) return *n;
  throw LoadError(fmt::format("{} lacks the metadata {}", path_, key));
}

double GgufFile::require_real(std::string_view key) const {
  if (const auto x = real(key)) return *x;
  throw LoadError(fmt::format("{} lacks the metadata {}", path_, key));
}

}  // namespace coppice::model
