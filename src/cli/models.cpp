#include "cli/models.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/local_models.h"
#include "cli/size_text.h"
#include "log/one_line.h"
#include "model/summary.h"
#include "port/memory.h"

namespace coppice::cli {

namespace {

/// "135M", "8.0B"; parameters are counted in thousands of thousands.
std::string count_text(std::int64_t parameters) {
  const double millions = static_cast<double>(parameters) / 1e6;
  if (parameters == 0) return "?";
  return millions < 999.5 ? fmt::format("{:.0f}M", millions) : fmt::format("{:.1f}B", millions / 1000);
}

/// Of a file, which may hold anything.
std::string known(const std::string& text) {
  return text.empty() ? "?" : log::one_line(text);
}

/// yes, or why not.
std::string verdict(const model::Summary& summary, std::size_t free) {
  if (!summary.complaint.empty()) return "no: " + log::one_line(summary.complaint);
  if (free > 0 && summary.bytes > free) return fmt::format("no: of the memory {} are free", size_text(free));
  return "yes";
}

void print(const std::vector<LocalModel>& models) {
  std::size_t width = 4;
  for (const LocalModel& model : models) width = std::max(width, log::one_line(model.name).size());
  fmt::print("  {:{}}  {:12} {:>10} {:>9}  {:8} can be served\n", "name", width, "family", "parameters", "size",
             "format");
  const std::size_t free = port::free_memory();
  for (const LocalModel& model : models) {
    const model::Summary summary = model::summarize(model.path.string());
    fmt::print("  {:{}}  {:12} {:>10} {:>9}  {:8} {}\n", log::one_line(model.name), width, known(summary.family),
               count_text(summary.parameters), size_text(summary.bytes), known(summary.format), verdict(summary, free));
  }
}

int list(const std::string& folder) {
  std::vector<ModelPlace> places;
  if (folder.empty()) {
    places = local_models();
  } else {
    places.push_back({"Folder", folder, models_in(folder)});
  }
  bool any = false;
  for (const ModelPlace& place : places) {
    if (place.models.empty()) continue;
    fmt::print("{}{}, {}\n", any ? "\n" : "", place.owner, place.folder.string());
    print(place.models);
    any = true;
  }
  if (any) return 0;
  fmt::print("There are no models in\n");
  for (const ModelPlace& place : places) fmt::print("  {} ({})\n", place.folder.string(), place.owner);
  if (folder.empty()) fmt::print("COPPICE_MODELS may name more folders, separated by colons.\n");
  return 0;
}

/// What a line of print() has no room for; of a model that can be loaded.
void print_sizes(const model::Summary& summary) {
  if (summary.n_layers == 0) return;
  constexpr std::size_t kGiB = std::size_t{1} << 30;
  fmt::print("\nIt has {} layers, and was trained for texts of {} tokens.\n", summary.n_layers, summary.context_length);
  if (summary.token_bytes > 0)
    fmt::print("A token takes {} bytes of the KV pool (--kv-bytes) in f16: 1 GiB holds about {}.\n",
               summary.token_bytes, kGiB / summary.token_bytes);
  if (summary.window_token_bytes > 0)
    fmt::print("Layers with a window take {} bytes more for each token in it.\n", summary.window_token_bytes);
  if (summary.n_recurrent > 0)
    fmt::print("{} recurrent layers keep states of texts there, too.\n", summary.n_recurrent);
  fmt::print("It has {} chat template.\n", summary.has_chat_template ? "a" : "no");
}

/// A file, or the local model of this name. Throws std::runtime_error: there is none.
int describe(const std::string& wanted) {
  LocalModel model = find_model(wanted);
  if (model.name.empty()) model.name = model.path.stem().string();
  fmt::print("File, {}\n", model.path.string());
  print({model});
  print_sizes(model::summarize(model.path.string()));
  return 0;
}

}  // namespace

void add_models(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("models", "List the models of this machine, and whether they can be served");
  auto place = std::make_shared<std::string>();
  command->add_option(
      "place", *place,
      "A folder to look into, instead of the usual places; or a file or a model's name, to describe it");
  command->callback([place, &exit_code] {
    std::error_code ignored;
    const bool folder = place->empty() || std::filesystem::is_directory(*place, ignored);
    exit_code = folder ? list(*place) : describe(*place);
  });
}

}  // namespace coppice::cli
