#include "model/gguf_header.h"

#include <fmt/format.h>
#include <ggml.h>

#include <bit>
#include <cctype>
#include <cstring>
#include <limits>
#include <utility>

#include "model/load_error.h"

namespace coppice::model {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place, little-endian");

namespace {

enum GgufType : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

// Real files have some 50 keys and some thousand tensors at most.
constexpr std::uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 17;
constexpr std::size_t kLongestName = 1024;

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

/// The file's first bytes, as somebody can read them who has downloaded an error page.
std::string beginning(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes.first(std::min<std::size_t>(4, bytes.size()))) {
    const auto c = std::to_integer<unsigned char>(b);
    text += std::isprint(c) != 0 ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
  }
  return text;
}

/// A cursor that never leaves the file.
class Reader {
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
  std::uint64_t count(std::uint64_t most, const char* of) {
    const auto n = number<std::uint64_t>();
    if (n > most) damaged(fmt::format("{} {}", n, of));
    return n;
  }
  std::string_view text() {
    const auto n = number<std::uint64_t>();
    return {reinterpret_cast<const char*>(take(n)), static_cast<std::size_t>(n)};
  }
  std::string name() {
    const std::string_view name = text();
    if (name.empty()) damaged("a key or tensor without a name");
    if (name.size() > kLongestName) damaged(fmt::format("a name of {} bytes", name.size()));
    return std::string(name);
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
  /// All but where the tensor lies in the file.
  TensorInfo tensor() {
    TensorInfo t;
    t.name = name();
    const auto n_dims = number<std::uint32_t>();
    if (n_dims < 1 || n_dims > 4) damaged(fmt::format("tensor {} with {} dimensions", t.name, n_dims));
    std::int64_t elements = 1;
    for (std::uint32_t d = 0; d < n_dims; ++d) {
      const auto n = number<std::int64_t>();
      if (n < 1 || n > std::numeric_limits<std::int32_t>::max() ||
          elements > std::numeric_limits<std::int64_t>::max() / 64 / n) {
        damaged(fmt::format("tensor {} with an impossible shape", t.name));
      }
      elements *= n;
      t.shape.push_back(n);
    }
    t.type = number<std::int32_t>();
    t.offset = number<std::uint64_t>();
    if (!known_type(t.type)) damaged(fmt::format("tensor {} of unknown type {}", t.name, t.type));
    const auto type = static_cast<ggml_type>(t.type);
    if (t.shape[0] % ggml_blck_size(type) != 0) {
      damaged(fmt::format("tensor {} with rows of {}, not whole blocks of {}", t.name, t.shape[0],
                          tensor_type_name(t.type)));
    }
    t.bytes = static_cast<std::size_t>(elements / ggml_blck_size(type)) * ggml_type_size(type);
    return t;
  }
  [[noreturn]] void damaged(const std::string& what) const {
    throw LoadError(fmt::format("{} is damaged: it holds {}", path_, what));
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& path_;
  std::size_t at_ = 0;
};

/// Offsets in the table count from where the header ends; afterwards from the start of the file.
void place_tensors(const Reader& in, GgufHeader& header, const std::string& path) {
  const auto found = header.values.find("general.alignment");
  const auto* given = found == header.values.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  const std::int64_t alignment = given ? *given : 32;
  if ((!given && found != header.values.end()) || alignment < 1 || alignment > (1 << 20) ||
      (alignment & (alignment - 1)) != 0) {
    in.damaged("an alignment that is no power of two");
  }
  const auto a = static_cast<std::size_t>(alignment);
  const std::size_t size = in.position() + in.left(), data = (header.size + a - 1) / a * a;
  for (TensorInfo& t : header.tensors) {
    if (t.offset % a != 0) in.damaged(fmt::format("tensor {} at an unaligned place", t.name));
    if (data > size || t.offset > size - data || t.bytes > size - data - t.offset) {
      throw LoadError(fmt::format("{} is truncated: tensor {} ends beyond the file's {} bytes", path, t.name, size));
    }
    t.offset += data;
  }
}

}  // namespace

std::string tensor_type_name(std::int32_t type) {
  if (!known_type(type)) return fmt::format("type {}", type);
  std::string name = ggml_type_name(static_cast<ggml_type>(type));
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

bool holds_weights(std::int32_t type) {
  return type == GGML_TYPE_F32 ||
         (known_type(type) && ggml_get_type_traits(static_cast<ggml_type>(type))->to_float != nullptr);
}

GgufHeader read_gguf_header(std::span<const std::byte> bytes, const std::string& path) {
  Reader in(bytes, path);
  if (bytes.size() < 4 || std::memcmp(in.take(4), "GGUF", 4) != 0) {
    throw LoadError(
        fmt::format("{} is not a GGUF file: it begins with '{}': was the download complete?", path, beginning(bytes)));
  }
  const auto version = in.number<std::uint32_t>();
  if (version < 2 || version > 3) {
    throw LoadError(fmt::format("{} has GGUF version {}; versions 2 and 3 can be read", path, version));
  }
  GgufHeader header;
  const std::uint64_t n_tensors = in.count(kMostTensors, "tensors"), n_keys = in.count(kMostKeys, "metadata keys");
  for (std::uint64_t i = 0; i < n_keys; ++i) {
    std::string key = in.name();
    const auto type = in.number<std::uint32_t>();
    const auto [place, is_new] = header.values.emplace(std::move(key), in.value(type));
    if (!is_new) in.damaged(fmt::format("the key {} twice", place->first));
  }
  for (std::uint64_t i = 0; i < n_tensors; ++i) header.tensors.push_back(in.tensor());
  header.size = in.position();
  place_tensors(in, header, path);
  return header;
}

}  // namespace coppice::model
