#include "cli/cache.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "cli/size_text.h"
#include "tier/disk/disk_folder.h"
#include "tier/disk/folder_report.h"
#include "tier/disk/real_files.h"

namespace coppice::cli {

namespace {

struct CacheOptions {
  std::string action, folder;
  std::optional<std::uint64_t> bytes;
  std::optional<std::int64_t> unused_seconds;
  std::string model;
  bool all = false;
};

/// "3 days"; of seconds.
std::string time_text(std::int64_t seconds) {
  for (const auto& [unit, name] : {std::pair(86400, "days"), std::pair(3600, "hours"), std::pair(60, "minutes")}) {
    if (seconds >= 2 * unit) return fmt::format("{} {}", seconds / unit, name);
  }
  return fmt::format("{} seconds", std::max<std::int64_t>(seconds, 0));
}

/// The command makes no folders, and so no cache of a name that is mistyped.
std::unique_ptr<tier::FileSystem> files_in(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) throw std::runtime_error(folder + " is no folder.");
  return tier::make_real_files(folder);
}

template <class T>
T value_or_throw(std::expected<T, std::string> result, const std::string& folder) {
  if (!result) throw std::runtime_error(fmt::format("{} {}.", folder, result.error()));
  return std::move(*result);
}

int list(const CacheOptions& options) {
  const auto files = files_in(options.folder);
  const auto report = value_or_throw(tier::report_folder(*files), options.folder);
  std::size_t n = 0;
  std::uint64_t bytes = 0;
  for (const tier::ModelPieces& model : report.models) {
    n += model.n;
    bytes += model.bytes;
  }
  fmt::print("{}: {} pieces, {}{}\n", options.folder, n, size_text(bytes), report.in_use ? "; a server uses it" : "");
  if (n > 0) fmt::print("\n  {:32}  {:>9}  {:>10}  {:>25}  {}\n", "model", "pieces", "size", "used last, ago", "what");
  const std::int64_t now = std::time(nullptr);
  for (const tier::ModelPieces& model : report.models) {
    const std::string used = time_text(now - model.last_used) + " to " + time_text(now - model.first_used);
    fmt::print("  {:32}  {:>9}  {:>10}  {:>25}  {}\n", model.id, model.n, size_text(model.bytes), used, model.about);
  }
  if (report.contents.bad > 0) fmt::print("\n{} damaged ones are kept in bad/.\n", report.contents.bad);
  if (report.contents.strange > 0) fmt::print("\n{} files or links there are no pieces.\n", report.contents.strange);
  return 0;
}

int check(const CacheOptions& options) {
  const auto files = files_in(options.folder);
  const auto print = [](const std::string& path, std::string_view why) { fmt::print("{}: {}\n", path, why); };
  const auto checked = value_or_throw(tier::check_folder(*files, print), options.folder);
  fmt::print("{}: {} pieces are whole, {} are damaged; {} were read\n", options.folder, checked.whole, checked.damaged,
             size_text(checked.bytes));
  if (checked.sealed > 0)
    fmt::print("{} more are sealed with a secret: only who has it can look into them.\n", checked.sealed);
  return checked.damaged == 0 ? 0 : 1;
}

/// The only model whose id begins so.
std::array<std::uint8_t, 16> find_model(tier::FileSystem& files, const CacheOptions& options) {
  const auto report = value_or_throw(tier::report_folder(files), options.folder);
  std::optional<std::array<std::uint8_t, 16>> found;
  for (const tier::ModelPieces& model : report.models) {
    if (!model.id.starts_with(options.model)) continue;
    if (found) throw std::runtime_error("Several models begin with " + options.model + ".");
    found.emplace();
    for (std::size_t i = 0; i < found->size(); ++i)
      (*found)[i] = static_cast<std::uint8_t>(std::stoi(model.id.substr(2 * i, 2), nullptr, 16));
  }
  if (!found) throw std::runtime_error("There is nothing of a model " + options.model + " in " + options.folder + ".");
  return *found;
}

int prune(const CacheOptions& options) {
  const bool forgets = options.all || options.unused_seconds || !options.model.empty();
  if (!forgets && !options.bytes)
    throw std::runtime_error("What is to go? --unused-for TIME, --model ID, --bytes SIZE or --all says it.");
  const auto files = files_in(options.folder);
  tier::Which which;
  if (!options.model.empty()) which.model = find_model(*files, options);
  if (options.unused_seconds) which.unused_for = std::chrono::seconds(*options.unused_seconds);
  value_or_throw(tier::report_folder(*files), options.folder);  // it is a cache
  const tier::DiskLimits limits{.bytes = options.bytes.value_or(std::numeric_limits<std::int64_t>::max()),
                                .free_share = 0};
  std::string trouble;
  tier::DiskFolder folder(*files, limits, [&](const std::string& line) { trouble = line; });
  if (const std::string why = folder.open(); !why.empty())
    throw std::runtime_error(fmt::format("{} {}.{}", options.folder, why,
                                         why == "is used by another server" ? " POST /v1/cache/reset asks it." : ""));
  const tier::Counters before = folder.counters();
  if (forgets) folder.forget(which);
  while (folder.tidy()) {
  }
  const tier::Counters after = folder.counters();
  fmt::print("{}: {} pieces, {} are gone; {} pieces, {} are left\n", options.folder, before.pieces - after.pieces,
             size_text(static_cast<std::size_t>(before.bytes - after.bytes)), after.pieces,
             size_text(static_cast<std::size_t>(after.bytes)));
  if (!trouble.empty()) throw std::runtime_error(trouble + ".");
  return 0;
}

}  // namespace

void add_cache(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("cache", "List, check or prune a folder of KV blocks (serve --kv-dir)");
  auto options = std::make_shared<CacheOptions>();
  command->add_option("what", options->action, "What to do; list and check also while a server uses the folder")
      ->required()
      ->check(CLI::IsMember({"list", "check", "prune"}));
  command->add_option("folder", options->folder, "The folder")->required()->type_name("DIR");
  command
      ->add_option("--bytes", options->bytes, "prune: what was used least recently goes until the rest takes so much")
      ->transform(CLI::AsSizeValue(false));
  command
      ->add_option("--unused-for", options->unused_seconds,
                   "prune: what was not used for so long goes: 90s, 30m, 12h, 7d")
      ->transform(
          CLI::AsNumberWithUnit(std::map<std::string, std::int64_t>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
                                CLI::AsNumberWithUnit::UNIT_REQUIRED, "TIME"));
  command->add_option("--model", options->model, "prune: only this model's, by the begin of its id in the list");
  command->add_flag("--all", options->all, "prune: all of it goes");
  command->callback([options, &exit_code] {
    if (options->action == "list") exit_code = list(*options);
    if (options->action == "check") exit_code = check(*options);
    if (options->action == "prune") exit_code = prune(*options);
  });
}

}  // namespace coppice::cli
