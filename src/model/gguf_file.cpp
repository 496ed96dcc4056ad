#include "model/gguf_file.h"

#include <fmt/format.h>
#include <ggml.h>

#include <bit>
#include <cstring>
#include <limits>

#include "model/load_error.h"

namespace coppice::model {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place, little-endian");

namespace {

enum GgufType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

std::size_t fixed_size(std::uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    case kU64:
    case kI64:
    case kF64:
      return 8;
    default:
      return 0;
  }
}

bool known_type(std::int32_t type) {
  return type >= 0 && type < GGML_TYPE_COUNT && ggml_blck_size(static_cast<ggml_type>(type)) > 0 &&
         ggml_type_size(static_cast<ggml_type>(type)) > 0;
}

}  // namespace

std::string tensor_type_name(std::int32_t type) {
  if (!known_type(type)) return fmt::format("type {}", type);
  std::string name = ggml_type_name(static_cast<ggml_type>(type));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

/// A cursor that never leaves the file.
class GgufFile::Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

  std::size_t position() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }

  const std::byte* take(std::uint64_t n) {
    if (n > left()) {
      throw LoadError(fmt::format("{} ends in the middle of its header: the file is truncated or damaged", path_));
    }
    const std::byte* p = bytes_.data() + at_;
    at_ += n;
    return p;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  std::string text() {
    const auto n = number<std::uint64_t>();
    const std::byte* p = take(n);
    return {reinterpret_cast<const char*>(p), static_cast<std::size_t>(n)};
  }
  GgufArray array(std::uint32_t type, std::uint64_t count) {
    GgufArray kept;
    const bool whole = type == kBool || (type <= kI32 && type != kF32) || type == kU64 || type == kI64;
    if (whole && count <= GgufArray::kMostKept) {
      for (std::uint64_t i = 0; i < count; ++i) {
        const GgufValue v = value(type);
        const bool* truth = std::get_if<bool>(&v);
        kept.elements.push_back(truth ? std::int64_t{*truth} : std::get<std::int64_t>(v));
      }
    } else if (type == kString) {
      for (std::uint64_t i = 0; i < count; ++i) take(number<std::uint64_t>());
    } else if (const std::size_t size = fixed_size(type); size > 0 && count <= left() / size) {
      take(count * size);
    } else {
      damaged("an array that does not fit");
    }
    return kept;
  }
  GgufValue value(std::uint32_t type) {
    switch (type) {
      case kU8:
        return std::int64_t{number<std::uint8_t>()};
      case kI8:
        return std::int64_t{number<std::int8_t>()};
      case kU16:
        return std::int64_t{number<std::uint16_t>()};
      case kI16:
        return std::int64_t{number<std::int16_t>()};
      case kU32:
        return std::int64_t{number<std::uint32_t>()};
      case kI32:
        return std::int64_t{number<std::int32_t>()};
      case kF32:
        return double{number<float>()};
      case kBool:
        return number<std::uint8_t>() != 0;
      case kString:
        return text();
      case kU64:
      case kI64:
        return number<std::int64_t>();
      case kF64:
        return number<double>();
      case kArray: {
        const auto element = number<std::uint32_t>();
        return array(element, number<std::uint64_t>());
      }
      default:
        damaged(fmt::format("a metadata value of unknown type {}", type));
    }
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw LoadError(fmt::format("{} is damaged: it holds {}", path_, what));
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::size_t at_ = 0;
};

GgufFile::GgufFile(const std::string& path) : path_(path), file_(path) {
  parse();
}

void GgufFile::parse() {
  Reader in(bytes(), path_);
  if (bytes().size() < 24 || std::memcmp(in.take(4), "GGUF", 4) != 0) {
    throw LoadError(fmt::format("{} is not a GGUF file: it does not begin with the letters GGUF", path_));
  }
  const auto version = in.number<std::uint32_t>();
  if (version < 2 || version > 3) {
    throw LoadError(fmt::format("{} has GGUF version {}; versions 2 and 3 can be read", path_, version));
  }
  const auto n_tensors = in.number<std::uint64_t>();
  const auto n_values = in.number<std::uint64_t>();
  for (std::uint64_t i = 0; i < n_values; ++i) {
    std::string key = in.text();
    const auto type = in.number<std::uint32_t>();
    if (key.empty()) in.damaged("a metadata key without a name");
    if (!values_.emplace(key, in.value(type)).second) in.damaged(fmt::format("the key {} twice", key));
  }
  if (const auto parts = integer("split.count"); parts && *parts > 1) {
    throw LoadError(fmt::format("{} is one of {} parts; split files cannot be loaded yet", path_, *parts));
  }
  parse_tensors(in, n_tensors);
}

void GgufFile::parse_tensors(Reader& in, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    TensorInfo t;
    t.name = in.text();
    const auto n_dims = in.number<std::uint32_t>();
    if (n_dims < 1 || n_dims > 4) in.damaged(fmt::format("tensor {} with {} dimensions", t.name, n_dims));
    std::int64_t elements = 1;
    for (std::uint32_t d = 0; d < n_dims; ++d) {
      const auto n = in.number<std::int64_t>();
      if (n < 1 || n > std::numeric_limits<std::int32_t>::max() ||
          elements > std::numeric_limits<std::int64_t>::max() / 64 / n) {
        in.damaged(fmt::format("tensor {} with an impossible shape", t.name));
      }
      elements *= n;
      t.shape.push_back(n);
    }
    t.type = in.number<std::int32_t>();
    t.offset = in.number<std::uint64_t>();
    if (!known_type(t.type)) in.damaged(fmt::format("tensor {} of unknown type {}", t.name, t.type));
    const auto type = static_cast<ggml_type>(t.type);
    if (t.shape[0] % ggml_blck_size(type) != 0) {
      in.damaged(fmt::format("tensor {} with rows of {}, not whole blocks of {}", t.name, t.shape[0],
                             tensor_type_name(t.type)));
    }
    t.bytes = static_cast<std::size_t>(elements / ggml_blck_size(type)) * ggml_type_size(type);
    if (!index_.emplace(t.name, static_cast<int>(i)).second) in.damaged(fmt::format("tensor {} twice", t.name));
    tensors_.push_back(std::move(t));
  }
  metadata_end_ = in.position();
  const std::int64_t alignment = integer("general.alignment").value_or(32);
  if (alignment < 1 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0) {
    in.damaged(fmt::format("an alignment of {}", alignment));
  }
  const auto a = static_cast<std::size_t>(alignment);
  const std::size_t data = (metadata_end_ + a - 1) / a * a;
  for (TensorInfo& t : tensors_) {
    if (t.offset % a != 0) in.damaged(fmt::format("tensor {} at an unaligned place", t.name));
    if (data > size() || t.offset > size() - data || t.bytes > size() - data - t.offset) {
      throw LoadError(fmt::format("{} is truncated: tensor {} ends beyond the file's {} bytes", path_, t.name, size()));
    }
    t.offset += data;
  }
}

int GgufFile::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? -1 : it->second;
}

std::vector<int> GgufFile::split(int tensor, std::span<const std::int64_t> sizes) {
  const TensorInfo whole = tensors_[static_cast<std::size_t>(tensor)];
  std::vector<int> parts;
  std::size_t offset = whole.offset;
  for (const std::int64_t size : sizes) {
    TensorInfo part = whole;
    part.shape.back() = size;
    part.offset = offset;
    part.bytes = whole.bytes / static_cast<std::size_t>(whole.shape.back()) * static_cast<std::size_t>(size);
    offset += part.bytes;
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
  if (const auto* s = std::get_if<std::string>(v)) return *s;
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
