#include "model/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>
#include <variant>

#include "model/families.h"
#include "model/gguf_file.h"
#include "model/load_error.h"

namespace coppice::model {

namespace {

/// By "general.file_type", the file format's number for a mix of types.
constexpr std::array<std::string_view, 39> kMixes = {
    "F32",    "F16",    "Q4_0",   "Q4_1",    "",       "",       "",       "Q8_0",   "Q5_0",  "Q5_1",
    "Q2_K",   "Q3_K_S", "Q3_K_M", "Q3_K_L",  "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K",  "IQ2_XXS",
    "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S",  "IQ4_NL", "IQ3_S",  "IQ3_M",  "IQ2_S", "IQ2_M",
    "IQ4_XS", "IQ1_M",  "BF16",   "",        "",       "",       "TQ1_0",  "TQ2_0",  "MXFP4"};

/// The mix's name; without one, the type that most bytes have.
std::string format_of(const GgufFile& file) {
  const auto mix = file.integer("general.file_type").value_or(-1);
  if (mix >= 0 && mix < std::ssize(kMixes) && !kMixes[static_cast<std::size_t>(mix)].empty())
    return std::string(kMixes[static_cast<std::size_t>(mix)]);
  std::map<std::int32_t, std::size_t> bytes;
  for (const TensorInfo& t : file.tensors()) bytes[t.type] += t.bytes;
  const auto most = std::ranges::max_element(bytes, {}, [](const auto& entry) { return entry.second; });
  return most == bytes.end() ? "" : tensor_type_name(most->first);
}

std::int64_t parameters_of(const GgufFile& file) {
  std::int64_t sum = 0;
  for (const TensorInfo& t : file.tensors()) {
    std::int64_t n = 1;
    for (const std::int64_t size : t.shape) n *= size;
    sum += n;
  }
  return sum;
}

void add_sizes(const ModelSpec& spec, Summary& summary) {
  constexpr std::size_t kF16Bytes = 2;
  summary.context_length = spec.context_length;
  summary.n_layers = static_cast<int>(spec.layers.size());
  for (const LayerSpec& layer : spec.layers) {
    if (!std::holds_alternative<std::monostate>(layer.recurrent)) ++summary.n_recurrent;
    if (!layer.mixer.owns_kv()) continue;
    const auto values = static_cast<std::size_t>(layer.mixer.heads.n_kv_head) * layer.mixer.heads.head_dim;
    (layer.mixer.window == 0 ? summary.token_bytes : summary.window_token_bytes) += 2 * values * kF16Bytes;
  }
}

}  // namespace

Summary summarize(const std::string& path) {
  Summary summary;
  std::error_code error;
  if (const auto size = std::filesystem::file_size(path, error); !error) summary.bytes = size;
  try {
    GgufFile file(path);
    summary.bytes = file.size();
    summary.family = file.text("general.architecture").value_or("");
    summary.format = format_of(file);
    summary.parameters = parameters_of(file);
    const auto known = known_architectures();
    if (summary.family == "clip") {
      summary.complaint = "a projector for images, which belongs to a model";
    } else if (std::ranges::find(known, summary.family) == known.end()) {
      summary.complaint = fmt::format("the family '{}' is not known", summary.family);
    } else {
      add_sizes(read_spec(file), summary);
      summary.has_chat_template = file.text("tokenizer.chat_template").has_value();
    }
  } catch (const LoadError& e) {
    summary.complaint = e.what();
    for (const std::string& prefix : {path + ": ", path + " "}) {
      if (summary.complaint.starts_with(prefix)) summary.complaint.erase(0, prefix.size());
    }
  }
  return summary;
}

}  // namespace coppice::model
