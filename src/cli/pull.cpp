#include "cli/pull.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "cli/local_models.h"
#include "cli/projector_files.h"
#include "cli/pull_progress.h"
#include "pull/hugging_face.h"
#include "pull/names.h"
#include "pull/ollama.h"

namespace coppice::cli {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string or_else(std::string value, std::string otherwise) {
  return value.empty() ? std::move(otherwise) : std::move(value);
}

/// As huggingface_hub reads its variables.
bool is_true(const std::string& value) {
  const std::string low = pull::lower(value);
  return low == "1" || low == "on" || low == "yes" || low == "true";
}

/// HF_TOKEN, without the line break that it may have from a file.
std::string token() {
  std::string text = variable("HF_TOKEN");
  constexpr const char* kBlanks = " \t\r\n";
  text.erase(text.find_last_not_of(kBlanks) + 1);
  text.erase(0, std::min(text.find_first_not_of(kBlanks), text.size()));
  if (!std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; }))
    throw std::runtime_error("HF_TOKEN is no token: it holds a blank, or another character that no token has.");
  return text;
}

/// Where models go.
struct Folder {
  std::filesystem::path path;
  const char* variable;  ///< that may name another one
};

/// Throws std::runtime_error: neither HOME nor one of these says where it is.
Folder checked(std::filesystem::path path, std::initializer_list<const char*> variables) {
  if (variable("HOME").empty() && std::ranges::all_of(variables, [](auto name) { return variable(name).empty(); }))
    throw std::runtime_error(fmt::format("HOME is not set: {} may name the folder for models.", *variables.begin()));
  return {std::move(path), *variables.begin()};
}

Folder folder_for(bool of_hub) {
  return of_hub ? checked(hugging_face_folder(), {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"})
                : checked(ollama_folder(), {"OLLAMA_MODELS"});
}

/// `coppice serve` looks beside the model for the file without which it sees no pictures.
void say_projectors(const pull::PulledModel& model, pull::Progress& progress) {
  const std::string own = bare_name(model.file);
  std::vector<std::string> names;
  for (const pull::HubFile& each : model.projectors)
    if (const std::string name = bare_name(each.file); name.empty() || name == own)
      names.push_back(pull::shown(pull::hub_text(each)));
  if (names.empty() || !find_projector({.path = model.file}).empty()) return;
  progress.says(fmt::format("It sees pictures with a projector beside it, which is not fetched yet: coppice pull {}",
                            fmt::join(names, ", or ")));
}

std::filesystem::path fetch(const std::string& name, const std::filesystem::path& folder) {
  pull::WebClient client(variable);
  PullProgress progress(::isatty(STDERR_FILENO) != 0);
  if (const auto hub_name = pull::hub_name(name)) {
    pull::Hub hub{.token = token(), .cache = folder};
    hub.endpoint = or_else(variable("HF_ENDPOINT"), hub.endpoint);
    while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
    const pull::PulledModel model = pull::pull_from_hub(client, hub, pull::parse_hub_file(*hub_name), progress);
    say_projectors(model, progress);
    return model.file;
  }
  const pull::OllamaName wanted = pull::parse_ollama_name(name);
  const std::string registry = or_else(variable("COPPICE_OLLAMA_REGISTRY"), "https://" + wanted.host);
  return pull::pull_from_ollama(client, registry, folder, wanted, progress);
}

std::filesystem::path fetch_or_help(const std::string& name) {
  const Folder folder = folder_for(pull::hub_name(name).has_value());
  const auto not_written = [&](const std::filesystem::path& what, const std::system_error& e) {
    return std::runtime_error(fmt::format("{} can't be written: {}. {} may name another folder for models.",
                                          what.string(), e.code().message(), folder.variable));
  };
  try {
    return fetch(name, folder.path);
  } catch (const pull::WebFailure& e) {
    if (!e.unreachable()) throw;
    throw std::runtime_error(fmt::format(
        "{} HTTPS_PROXY may name a proxy; 'coppice serve --model FILE' serves a file that came another way.",
        e.what()));
  } catch (const std::filesystem::filesystem_error& e) {
    throw not_written(e.path2().empty() ? e.path1() : e.path2(), e);
  } catch (const std::system_error& e) {
    throw not_written(folder.path, e);
  }
}

/// Without asking anybody.
std::filesystem::path find_here(const std::string& name) {
  try {
    return find_model(name).path;
  } catch (const NoSuchModel&) {
    throw std::runtime_error(
        fmt::format("'{}' is not on this machine, and nobody is asked for it (--offline).", pull::shown(name)));
  }
}

}  // namespace

void add_pull(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "pull", "Fetch a model: NAME:TAG from Ollama's registry, hf:OWNER/REPO/FILE from Hugging Face");
  struct Options {
    std::string name;
    bool offline = false;
  };
  auto options = std::make_shared<Options>();
  command
      ->add_option("name", options->name,
                   "llama3.2:1b, as Ollama calls it; hf:OWNER/REPO/FILE.gguf; hf:OWNER/REPO, or hf:OWNER/REPO:Q4_K_M, "
                   "where that means one GGUF file; the address of its page at huggingface.co")
      ->required();
  command->add_flag("--offline", options->offline, "Ask nobody: say where the model lies, if it is here")
      ->envname("HF_HUB_OFFLINE")
      ->transform(CLI::Validator(
          [](std::string& value) {
            value = is_true(value) ? "true" : "false";
            return std::string();
          },
          ""));
  command->callback([options, &exit_code] {
    const std::filesystem::path file = options->offline ? find_here(options->name) : fetch_or_help(options->name);
    fmt::print("{}\n", file.string());
    exit_code = 0;
  });
}

}  // namespace coppice::cli
