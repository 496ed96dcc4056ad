#include "cli/pull.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

#include "cli/local_models.h"
#include "cli/pull_progress.h"
#include "pull/hugging_face.h"
#include "pull/ollama.h"

namespace coppice::cli {

namespace {

constexpr std::string_view kHub = "hf:";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string or_else(std::string value, std::string otherwise) {
  return value.empty() ? std::move(otherwise) : std::move(value);
}

std::filesystem::path fetch(const std::string& name) {
  pull::WebClient client(variable);
  PullProgress progress(::isatty(STDERR_FILENO) != 0);
  if (name.starts_with(kHub)) {
    pull::Hub hub{.token = variable("HF_TOKEN"), .cache = hugging_face_folder()};
    hub.endpoint = or_else(variable("HF_ENDPOINT"), hub.endpoint);
    while (hub.endpoint.ends_with('/')) hub.endpoint.pop_back();
    return pull::pull_from_hub(client, hub, pull::parse_hub_file(name.substr(kHub.size())), progress);
  }
  const pull::OllamaName wanted = pull::parse_ollama_name(name);
  const std::string registry = or_else(variable("COPPICE_OLLAMA_REGISTRY"), "https://" + wanted.host);
  return pull::pull_from_ollama(client, registry, ollama_folder(), wanted, progress);
}

std::filesystem::path fetch_or_help(const std::string& name) try {
  return fetch(name);
} catch (const pull::WebFailure& e) {
  if (!e.unreachable()) throw;
  throw std::runtime_error(fmt::format(
      "{} HTTPS_PROXY may name a proxy; 'coppice serve --model FILE' serves a file that came another way.", e.what()));
}

/// Without asking anybody.
std::filesystem::path find_here(const std::string& name) {
  try {
    return find_model(name).path;
  } catch (const std::runtime_error&) {
    throw std::runtime_error(fmt::format("'{}' is not on this machine, and nobody is asked for it (--offline).", name));
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
      ->add_option(
          "name", options->name,
          "llama3.2:1b, as Ollama calls it; hf:OWNER/REPO/FILE.gguf; hf:OWNER/REPO where that has one GGUF file")
      ->required();
  command->add_flag("--offline", options->offline, "Ask nobody: say where the model lies, if it is here")
      ->envname("HF_HUB_OFFLINE");
  command->callback([options, &exit_code] {
    const std::filesystem::path file = options->offline ? find_here(options->name) : fetch_or_help(options->name);
    fmt::print("{}\n", file.string());
    exit_code = 0;
  });
}

}  // namespace coppice::cli
