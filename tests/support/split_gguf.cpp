#include "support/split_gguf.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>

#include <memory>
#include <stdexcept>

namespace coppice::test {

std::vector<std::string> split_gguf(const std::filesystem::path& from, const std::filesystem::path& stem, Split split) {
  using GgufPtr = std::unique_ptr<gguf_context, decltype(&gguf_free)>;
  ggml_context* raw = nullptr;
  const GgufPtr in(gguf_init_from_file(from.c_str(), {.no_alloc = false, .ctx = &raw}), gguf_free);
  if (!in) throw std::runtime_error("cannot read " + from.string());
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> data(raw, ggml_free);
  const std::int64_t n = gguf_get_n_tensors(in.get());
  const int empty = split.first_has_tensors ? 0 : 1;
  std::vector<std::string> paths;
  for (int part = 0; part < split.parts; ++part) {
    const GgufPtr out(gguf_init_empty(), gguf_free);
    if (part == 0) gguf_set_kv(out.get(), in.get());
    gguf_set_val_u16(out.get(), "split.no", static_cast<std::uint16_t>(part));
    gguf_set_val_u16(out.get(), "split.count", static_cast<std::uint16_t>(split.parts));
    gguf_set_val_i32(out.get(), "split.tensors.count", static_cast<std::int32_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      if (i * (split.parts - empty) / n + empty != part) continue;
      gguf_add_tensor(out.get(), ggml_get_tensor(data.get(), gguf_get_tensor_name(in.get(), i)));
    }
    paths.push_back(fmt::format("{}-{:05}-of-{:05}.gguf", stem.string(), part + 1, split.parts));
    if (!gguf_write_to_file(out.get(), paths.back().c_str(), false)) {
      throw std::runtime_error("cannot write " + paths.back());
    }
  }
  return paths;
}

}  // namespace coppice::test
