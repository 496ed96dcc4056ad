#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/families.h"
#include "model/sha256.h"

namespace coppice::model {

bool ModelSpec::has_sections() const {
  return std::ranges::any_of(ropes, [](const RopeSpec& rope) { return rope.sections.has_value(); });
}

std::vector<TensorId> ModelSpec::matrices() const {
  std::vector<TensorId> ids;
  const auto add = [&ids](std::span<const LinearSpec* const> linears) {
    for (const LinearSpec* l : linears) {
      if (l->weight != kNoTensor) ids.push_back(l->weight);
    }
  };
  for (const LayerSpec& layer : layers) {
    add(layer.mixer.linears());
    if (const auto* mixer = std::get_if<ShortConvSpec>(&layer.recurrent)) add(mixer->linears());
    if (const auto* mixer = std::get_if<LinearAttentionSpec>(&layer.recurrent)) add(mixer->linears());
    add(layer.feed_forward.linears());
    add(layer.experts.linears());
    add(layer.token_input.linears());
  }
  add(std::array{&token_inputs.projection, &output});
  return ids;
}

std::string model_digest(const GgufFile& file) {
  constexpr std::size_t kSample = 4096;
  Sha256 hash;
  for (int part = 0; part < file.parts(); ++part) hash.add(file.metadata_bytes(part));
  for (const TensorInfo& t : file.tensors()) {
    const auto bytes = file.tensor_bytes(t);
    const std::size_t n = std::min(kSample, bytes.size());
    for (const std::size_t at : {std::size_t{0}, (bytes.size() - n) / 2, bytes.size() - n})
      hash.add(bytes.subspan(at, n));
  }
  return hash.hex();
}

Model load_model(const std::string& path) {
  Model model;
  auto file = std::make_unique<GgufFile>(path);
  model.digest = model_digest(*file);  // of the file as it is: families may split tensors
  model.spec = read_spec(*file);
  model.file = std::move(file);
  return model;
}

bool was_changed(const Model& model) {
  if (!model.file->was_written()) return false;
  try {
    return model_digest(GgufFile(model.file->path())) != model.digest;
  } catch (const LoadError&) {
    return true;
  }
}

}  // namespace coppice::model
