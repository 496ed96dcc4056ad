#include "pull/ollama.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include "pull/replace.h"
#include "pull/tries.h"

namespace coppice::pull {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

constexpr std::string_view kHash = "sha256:";

struct Layer {
  std::string kind, digest;
  std::uint64_t size = 0;

  bool operator==(const Layer&) const = default;
};

/// Throws WebFailure: it is no layer.
Layer layer_of(const json::value& value, const std::string& host) {
  const json::object* fields = value.if_object();
  const auto text = [&](const char* name) {
    const json::value* found = fields == nullptr ? nullptr : fields->if_contains(name);
    return found != nullptr && found->is_string() ? std::string(found->as_string()) : "";
  };
  Layer layer{.kind = text("mediaType"), .digest = text("digest")};
  const json::value* size = fields == nullptr ? nullptr : fields->if_contains("size");
  if (!layer.digest.starts_with(kHash) || !is_hex(std::string_view(layer.digest).substr(kHash.size()), 64) ||
      size == nullptr || !size->is_int64() || size->as_int64() < 0)
    throw WebFailure(fmt::format("{} answers with something else than a manifest.", host), false);
  layer.size = static_cast<std::uint64_t>(size->as_int64());
  return layer;
}

/// All that must be there, the model first.
std::vector<Layer> layers_in(const std::string& manifest, const std::string& host) {
  boost::system::error_code error;
  const json::value value = json::parse(manifest, error);
  const json::object* fields = error ? nullptr : value.if_object();
  const json::value* layers = fields == nullptr ? nullptr : fields->if_contains("layers");
  const json::value* config = fields == nullptr ? nullptr : fields->if_contains("config");
  if (layers == nullptr || !layers->is_array() || config == nullptr)
    throw WebFailure(fmt::format("{} answers with something else than a manifest.", host), false);
  std::vector<Layer> found;
  for (const json::value& layer : layers->as_array()) found.push_back(layer_of(layer, host));
  found.push_back(layer_of(*config, host));
  const auto model = std::ranges::find(found, "application/vnd.ollama.image.model", &Layer::kind);
  if (model == found.end()) throw std::runtime_error("Its manifest lists no GGUF file: such a model can't be served.");
  std::rotate(found.begin(), model, std::next(model));
  return found;
}

/// Whether the file is a manifest of these; Ollama writes it in other words than the registry.
bool lists(const fs::path& manifest, const std::vector<Layer>& layers) {
  try {
    std::ifstream in(manifest, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    return layers_in(text, manifest.string()) == layers;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

fs::path pull_from_ollama(WebClient& client, const std::string& registry, const fs::path& folder,
                          const OllamaName& wanted, Progress& progress) {
  const std::string root = fmt::format("{}/v2/{}/{}", registry, wanted.space, wanted.name);
  const auto url_of = [&](const std::string& rest) {
    const auto url = server::parse_url(root + rest);
    if (!url) throw std::runtime_error(fmt::format("The registry has no URL: {}", shown(registry)));
    return *url;
  };
  const WebReply reply = ask_patiently(client,
                                       {.url = url_of("/manifests/" + wanted.tag),
                                        .fields = {{"Accept", "application/vnd.docker.distribution.manifest.v2+json"}}},
                                       wanted.whole(), progress);
  if (reply.status == 404 || reply.status == 400) {
    std::string hint;
    if (wanted.space != OllamaName().space)
      hint = fmt::format(" If it is Hugging Face's: hf:{}/{}{}", wanted.space, wanted.name,
                         wanted.tag == OllamaName().tag ? "" : ":" + wanted.tag);
    throw std::runtime_error(fmt::format("There is no {} at {}.{}", wanted.whole(), registry, hint));
  }
  if (reply.status != 200) throw status_failure(reply, wanted.whole());
  fs::path model;
  const std::vector<Layer> layers = layers_in(reply.body, reply.url.authority());
  for (const Layer& layer : layers) {
    std::string name = layer.digest;
    name[name.find(':')] = '-';
    const fs::path blob = folder / "blobs" / name;
    download(client,
             {.name = model.empty() ? wanted.whole() : shown(layer.kind),
              .url = url_of("/blobs/" + layer.digest),
              .target = blob,
              .growing = blob.string() + "-coppice-partial",
              .sha256 = layer.digest.substr(kHash.size()),
              .size = layer.size},
             progress);
    if (model.empty()) model = blob;
  }
  const fs::path manifest = folder / "manifests" / wanted.host / wanted.space / wanted.name / wanted.tag;
  if (!lists(manifest, layers)) replace_file(manifest, reply.body);
  return model;
}

}  // namespace coppice::pull
