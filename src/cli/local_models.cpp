#include "cli/local_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cli/which_model.h"
#include "log/one_line.h"
#include "pull/hugging_face.h"
#include "pull/names.h"

namespace coppice::cli {

namespace fs = std::filesystem;
using pull::lower;

namespace {

constexpr int kDepth = 5;  ///< of a folder of one's own: what is deeper isn't looked at

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

/// The first of these that the environment has, followed by `rest`; without any, `otherwise` below the home folder.
fs::path folder_by(std::initializer_list<std::pair<const char*, const char*>> variables, const char* otherwise) {
  for (const auto& [name, rest] : variables) {
    if (const std::string value = variable(name); !value.empty()) return fs::path(value) / rest;
  }
  return fs::path(variable("HOME")) / otherwise;
}

/// Files below a folder, sorted. Links to folders are followed; the depth bounds loops.
std::vector<fs::path> files_below(const fs::path& folder, int depth) {
  std::vector<fs::path> files;
  std::error_code error;
  const auto options = fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(folder, options, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) {
      if (it.depth() + 1 >= depth) it.disable_recursion_pending();
    } else {
      files.push_back(it->path());
    }
  }
  std::ranges::sort(files);
  return files;
}

/// The file's name without its ending and its part's number; empty: it is no model's first part.
std::string stem_of(const fs::path& file) {
  static const std::regex part("(.*)-([0-9]{5})-of-[0-9]{5}");
  if (lower(file.extension().string()) != ".gguf") return {};
  std::string stem = file.stem().string();
  std::smatch found;
  if (!std::regex_match(stem, found, part)) return stem;
  return found[2] == "00001" ? found[1].str() : std::string();
}

/// Files of PUBLISHER/REPO.
LocalModel in_repo(const std::string& publisher, const std::string& repo, const std::string& stem, fs::path path) {
  const std::string full = publisher.empty() ? repo : publisher + "/" + repo;
  return {.name = full + "/" + stem, .served = stem, .aliases = {full, repo, stem}, .path = std::move(path)};
}

/// models--PUBLISHER--REPO/snapshots/HASH/FILE. Of a file in several snapshots the one that `refs/main` names counts,
/// or the last.
std::vector<LocalModel> hugging_face_models(const fs::path& hub) {
  constexpr std::string_view kPrefix = "models--";
  std::map<std::string, LocalModel> found;
  std::error_code error;
  for (fs::directory_iterator it(hub, error), end; !error && it != end; it.increment(error)) {
    const std::string folder = it->path().filename().string();
    if (!folder.starts_with(kPrefix)) continue;
    std::string publisher, repo = folder.substr(kPrefix.size());
    if (const auto dashes = repo.find("--"); dashes != std::string::npos) {
      publisher = repo.substr(0, dashes);
      repo.erase(0, dashes + 2);
    }
    std::string main;
    std::ifstream(it->path() / "refs" / "main") >> main;
    const fs::path snapshots = it->path() / "snapshots";
    for (const fs::path& file : files_below(snapshots, 4)) {
      const std::string stem = stem_of(file);
      std::error_code ignored;
      if (stem.empty() || !fs::is_regular_file(file, ignored)) continue;  // a link may lead nowhere
      LocalModel model = in_repo(publisher, repo, stem, file);
      const bool is_main = *file.lexically_relative(snapshots).begin() == main;
      const auto [place, is_new] = found.emplace(model.name, model);
      if (!is_new && is_main) place->second = std::move(model);
    }
  }
  std::vector<LocalModel> models;
  for (auto& [name, model] : found) models.push_back(std::move(model));
  return models;
}

/// A file's JSON; empty: there is no file, or it holds no object.
boost::json::object object_in(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  boost::system::error_code error;
  boost::json::value json = boost::json::parse(text, error);
  return error || !json.is_object() ? boost::json::object() : std::move(json.as_object());
}

/// The file of a manifest's layer of this kind; empty: there is none.
fs::path ollama_blob(const boost::json::object& json, const fs::path& blobs, std::string_view kind) {
  const auto* layers = json.if_contains("layers");
  if (layers == nullptr || !layers->is_array()) return {};
  for (const auto& layer : layers->as_array()) {
    if (!layer.is_object()) continue;
    const auto* type = layer.as_object().if_contains("mediaType");
    const auto* digest = layer.as_object().if_contains("digest");
    if (type == nullptr || digest == nullptr || !digest->is_string() ||
        *type != boost::json::value("application/vnd.ollama.image." + std::string(kind)))
      continue;
    std::string name(digest->as_string());
    std::ranges::replace(name, ':', '-');
    if (!name.contains("/")) return blobs / name;
  }
  return {};
}

/// manifests/HOST/NAMESPACE/NAME/TAG. Ollama leaves out its own host, and the namespace "library".
std::vector<LocalModel> ollama_models(const fs::path& folder) {
  std::vector<LocalModel> models;
  const fs::path manifests = folder / "manifests";
  for (const fs::path& manifest : files_below(manifests, 5)) {
    const fs::path relative = manifest.lexically_relative(manifests);
    const std::vector<std::string> steps(relative.begin(), relative.end());
    if (steps.size() != 4) continue;
    const boost::json::object json = object_in(manifest);
    const fs::path blob = ollama_blob(json, folder / "blobs", "model");
    if (blob.empty()) continue;
    std::string name;
    if (steps[0] != "registry.ollama.ai") name += steps[0] + "/";
    if (steps[1] != "library" || !name.empty()) name += steps[1] + "/";
    name += steps[2];
    LocalModel model{.name = name + ":" + steps[3],
                     .served = name + ":" + steps[3],
                     .path = blob,
                     .projector = ollama_blob(json, folder / "blobs", "projector")};
    if (steps[3] == "latest") model.aliases.push_back(name);
    models.push_back(std::move(model));
  }
  return models;
}

/// In its home folder, which a file may name, its settings may name another folder.
std::vector<fs::path> lm_studio_folders() {
  const fs::path home = variable("HOME");
  std::vector<fs::path> homes;
  std::string pointed;
  if (std::getline(std::ifstream(home / ".lmstudio-home-pointer"), pointed) && !pointed.empty())
    homes.emplace_back(pointed);
  for (const char* usual : {".lmstudio", ".cache/lm-studio"}) homes.push_back(home / usual);
  std::vector<fs::path> folders;
  for (const fs::path& each : homes) {
    const boost::json::object settings = object_in(each / "settings.json");
    const auto* chosen = settings.if_contains("downloadsFolder");
    if (chosen != nullptr && chosen->is_string() && !chosen->as_string().empty())
      folders.emplace_back(std::string(chosen->as_string()));
    folders.push_back(each / "models");
  }
  return folders;
}

/// PUBLISHER/REPO/FILE.
std::vector<LocalModel> lm_studio_models(const fs::path& folder) {
  std::vector<LocalModel> models;
  for (const fs::path& file : files_below(folder, 4)) {
    const fs::path relative = file.lexically_relative(folder);
    const std::vector<std::string> steps(relative.begin(), relative.end());
    if (const std::string stem = stem_of(file); !stem.empty() && steps.size() >= 3)
      models.push_back(in_repo(steps[0], steps[1], stem, file));
  }
  return models;
}

std::vector<LocalModel> plain_models(const fs::path& folder, int depth) {
  std::vector<LocalModel> models;
  for (const fs::path& file : files_below(folder, depth)) {
    const std::string stem = stem_of(file);
    if (stem.empty()) continue;
    const fs::path parent = file.lexically_relative(folder).parent_path();
    models.push_back({.name = (parent / stem).string(), .served = stem, .aliases = {stem}, .path = file});
  }
  return models;
}

/// Whether a place has a name for this file, or for another snapshot's, of which one counts.
bool has_name_for(const ModelPlace& place, const fs::path& path) {
  const fs::path relative = path.lexically_relative(place.folder);
  if (!relative.empty() && relative.begin()->string().starts_with("models--")) return true;
  return std::ranges::find(place.models, path, &LocalModel::path) != place.models.end();
}

/// `name` in lower case.
bool has_alias(const LocalModel& model, const std::string& name) {
  return std::ranges::any_of(model.aliases, [&](const auto& alias) { return lower(alias) == name; });
}

/// "publisher/repo:Q4_K_M": the one of the repository's files that has this in its name.
bool is_in_repo(const LocalModel& model, const std::string& wanted) {
  const auto colon = wanted.rfind(':');
  if (colon == std::string::npos || !pull::has_word(lower(model.served), wanted.substr(colon + 1))) return false;
  return has_alias(model, wanted.substr(0, colon));
}

/// A file of the hub's that lies here; of which revision isn't known.
bool is_of_hub(const LocalModel& model, const pull::HubFile& wanted) {
  if (!has_alias(model, lower(wanted.repo))) return false;
  if (wanted.file.empty())
    return wanted.quantization.empty() || pull::has_word(lower(model.served), lower(wanted.quantization));
  fs::path file = wanted.file;
  if (lower(file.extension().string()) != ".gguf") file += ".gguf";
  return lower(model.served) == lower(stem_of(file));
}

/// A name as Ollama's folder has it, without its own host and "library"; another text as it is.
std::string as_ollama_has_it(const std::string& wanted) {
  try {
    return pull::parse_ollama_name(wanted).whole();
  } catch (const std::runtime_error&) {
    return wanted;
  }
}

/// `wanted`, `full`: in lower case; full: as Ollama has it.
bool is_called(const LocalModel& model, const std::string& wanted, const std::string& full) {
  const std::string name = lower(model.name);
  return name == wanted || name == full || has_alias(model, wanted) || is_in_repo(model, wanted);
}

/// Without projectors, and each file once.
std::vector<LocalModel> choices(const std::vector<LocalModel>& models, auto fits) {
  std::vector<LocalModel> chosen;
  std::set<fs::path> seen;
  for (const LocalModel& model : models) {
    if (lower(model.served).contains("mmproj") || !fits(model)) continue;
    std::error_code error;
    const fs::path file = fs::canonical(model.path, error);
    if (seen.insert(error ? model.path : file).second) chosen.push_back(model);
  }
  return chosen;
}

[[noreturn]] void refuse_unreadable(const fs::path& path, const std::error_code& error) {
  throw std::runtime_error(fmt::format("{} cannot be read: {}.", path.string(), error.message()));
}

[[noreturn]] void refuse_several(const std::string& wanted, const std::vector<LocalModel>& models, bool as_paths) {
  constexpr std::size_t kMost = 20;
  std::string sentence = fmt::format("'{}' may be one of {} models; say which:", wanted, models.size());
  for (std::size_t i = 0; i < std::min(kMost, models.size()); ++i)
    sentence += "\n  " + log::one_line(as_paths ? models[i].path.string() : models[i].name);
  if (models.size() > kMost) sentence += fmt::format("\n  and {} more", models.size() - kMost);
  throw std::runtime_error(sentence);
}

/// `but`: without those in this folder.
std::vector<LocalModel> all_models(const fs::path& but = {}) {
  std::vector<LocalModel> all;
  for (ModelPlace& place : local_models())
    if (place.folder != but) std::ranges::move(place.models, std::back_inserter(all));
  return all;
}

/// The model and no other, whose file may lie in another program's folder.
LocalModel find_of_hub(const std::string& wanted, const pull::HubFile& hub_file) {
  const fs::path cache = hugging_face_folder();
  if (const auto file = pull::find_in_hub_cache(cache, hub_file)) return {.path = *file};
  std::vector<LocalModel> found;
  if (hub_file.revision == pull::HubFile().revision)
    found = choices(all_models(cache), [&](const LocalModel& m) { return is_of_hub(m, hub_file); });
  if (found.size() == 1) return found.front();
  if (!found.empty()) refuse_several(wanted, found, false);
  throw NoSuchModel(fmt::format("'{0}' is not on this machine; 'coppice pull {0}' fetches it. {1}", pull::shown(wanted),
                                models_to_choose()));
}

LocalModel find_by_name(const std::string& wanted) {
  std::string name = lower(wanted);
  if (name.ends_with(".gguf")) name.resize(name.size() - std::string_view(".gguf").size());
  const std::vector<LocalModel> all = all_models();
  const std::string full = lower(as_ollama_has_it(wanted));
  std::vector<LocalModel> found = choices(all, [&](const LocalModel& m) { return is_called(m, name, full); });
  if (found.empty()) found = choices(all, [&](const LocalModel& m) { return lower(m.name).contains(name); });
  if (found.size() == 1) return found.front();
  if (!found.empty()) refuse_several(wanted, found, false);
  throw NoSuchModel(fmt::format("There is no file, folder or local model '{}'; 'coppice pull' gets models. {}",
                                pull::shown(wanted), models_to_choose()));
}

}  // namespace

std::vector<ModelPlace> local_models() {
  std::vector<ModelPlace> places;
  const std::string own = variable("COPPICE_MODELS");
  for (std::size_t begin = 0; begin < own.size();) {
    const std::size_t end = std::min(own.find(':', begin), own.size());
    if (end > begin) places.push_back({"COPPICE_MODELS", own.substr(begin, end - begin), {}});
    begin = end + 1;
  }
  const std::size_t own_places = places.size();
  for (ModelPlace& place : places) place.models = plain_models(place.folder, kDepth);
  const auto add = [&](const char* owner, const fs::path& folder, auto models) {
    if (std::ranges::find(places, folder, &ModelPlace::folder) == places.end())
      places.push_back({owner, folder, models(folder)});
  };
  const auto files = [](const fs::path& folder) { return plain_models(folder, 1); };
  add("coppice", own_folder(), files);
  add("Hugging Face", hugging_face_folder(), hugging_face_models);
  add("Ollama", ollama_folder(), ollama_models);
  add("Ollama", "/usr/share/ollama/.ollama/models", ollama_models);
  for (const fs::path& folder : lm_studio_folders()) add("LM Studio", folder, lm_studio_models);
  add("llama.cpp", folder_by({{"LLAMA_CACHE", ""}, {"XDG_CACHE_HOME", "llama.cpp"}}, ".cache/llama.cpp"), files);
  // A cache below a folder of one's own has its own names for what it holds.
  const std::span all(places);
  for (ModelPlace& place : all.first(own_places))
    std::erase_if(place.models, [&](const LocalModel& model) {
      return std::ranges::any_of(all.subspan(own_places),
                                 [&](const ModelPlace& other) { return has_name_for(other, model.path); });
    });
  return places;
}

fs::path hugging_face_folder() {
  return folder_by({{"HF_HUB_CACHE", ""}, {"HF_HOME", "hub"}, {"XDG_CACHE_HOME", "huggingface/hub"}},
                   ".cache/huggingface/hub");
}

fs::path ollama_folder() {
  return folder_by({{"OLLAMA_MODELS", ""}}, ".ollama/models");
}

fs::path own_folder() {
  return folder_by({{"COPPICE_CACHE", ""}}, ".cache/coppice");
}

std::vector<LocalModel> models_in(const fs::path& folder) {
  std::error_code error;
  if (fs::directory_iterator(folder, error); error) refuse_unreadable(folder, error);
  return plain_models(folder, kDepth);
}

LocalModel find_model(const std::string& wanted) {
  if (const auto hub_name = pull::hub_name(wanted)) return find_of_hub(wanted, pull::parse_hub_file(*hub_name));
  std::error_code error;
  const fs::file_status status = fs::status(wanted, error);
  if (fs::is_directory(status)) {
    const auto found = choices(models_in(wanted), [](const LocalModel&) { return true; });
    if (found.empty()) throw std::runtime_error(fmt::format("There is no GGUF file in the folder {}.", wanted));
    if (found.size() > 1) refuse_several(wanted, found, true);
    return found.front();
  }
  if (fs::exists(status)) return {.path = wanted};
  if (wanted.starts_with('/') || wanted.starts_with('.') || wanted.starts_with('~')) {
    if (status.type() != fs::file_type::not_found) refuse_unreadable(wanted, error);
    throw std::runtime_error(fmt::format("There is no file or folder {}.", wanted));
  }
  return find_by_name(wanted);
}

}  // namespace coppice::cli
