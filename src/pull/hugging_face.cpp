#include "pull/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "pull/replace.h"
#include "pull/tries.h"

namespace coppice::pull {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

constexpr std::size_t kSha256 = 64, kCommit = 40;  // hex digits

std::string authorization(const Hub& hub) {
  return hub.token.empty() ? "" : "Bearer " + hub.token;
}

server::Url url_of(const Hub& hub, const std::string& target) {
  const auto url = server::parse_url(hub.endpoint + target);
  if (!url) throw std::runtime_error(fmt::format("HF_ENDPOINT is no URL: {}", shown(hub.endpoint)));
  return *url;
}

std::string name_of(const HubFile& wanted) {
  return wanted.file.empty() ? wanted.repo : wanted.repo + "/" + wanted.file;
}

/// What 401 and 403 mean to people.
std::string forbidden(const Hub& hub, const HubFile& wanted) {
  return fmt::format("{} is not for everybody, or isn't there: {}.", name_of(wanted),
                     hub.token.empty() ? "HF_TOKEN may hold a token of somebody who may have it"
                                       : "the token in HF_TOKEN may not have it");
}

/// What a status other than 200 means to people.
[[noreturn]] void refuse(const Hub& hub, const HubFile& wanted, const WebReply& reply) {
  if (reply.status == 401 || reply.status == 403) throw std::runtime_error(forbidden(hub, wanted));
  if (reply.status == 404)
    throw std::runtime_error(fmt::format("There is no {} at {}.", name_of(wanted), hub.endpoint));
  throw status_failure(reply, name_of(wanted));
}

/// The names of the repository's files.
std::vector<std::string> list_files(WebClient& client, const Hub& hub, const HubFile& wanted, Progress& progress) {
  const std::string target = fmt::format("/api/models/{}/revision/{}", wanted.repo, encoded_step(wanted.revision));
  const WebReply reply =
      ask_patiently(client, {.url = url_of(hub, target), .authorization = authorization(hub)}, wanted.repo, progress);
  if (reply.status != 200) refuse(hub, wanted, reply);
  boost::system::error_code error;
  const json::value answer = json::parse(reply.body, error);
  const json::value* siblings = error || !answer.is_object() ? nullptr : answer.as_object().if_contains("siblings");
  if (siblings == nullptr || !siblings->is_array())
    throw WebFailure(fmt::format("{} answers with something else than a list of files.", reply.url.authority()), false);
  std::vector<std::string> files;
  for (const json::value& sibling : siblings->as_array()) {
    const json::value* name = sibling.is_object() ? sibling.as_object().if_contains("rfilename") : nullptr;
    if (name != nullptr && name->is_string()) files.emplace_back(name->as_string());
  }
  return files;
}

/// The one that is meant. Throws std::runtime_error: none is, or several.
std::string only_file(const HubFile& wanted, const std::vector<std::string>& files) {
  const std::vector<std::string> found = fitting(wanted, files);
  if (found.size() == 1) return found.front();
  HubFile any = wanted;
  any.quantization.clear();
  const std::vector<std::string> listed = found.empty() ? fitting(any, files) : found;
  if (listed.empty()) throw std::runtime_error(fmt::format("{} has no GGUF file.", wanted.repo));
  const std::string with = wanted.quantization.empty() ? "" : fmt::format(" with {} in its name", wanted.quantization);
  const std::string count = found.empty() ? "no GGUF file" : fmt::format("{} GGUF files", found.size());
  const std::string each = "\n  " + hub_text({.repo = wanted.repo, .revision = wanted.revision, .file = ""});
  throw std::runtime_error(fmt::format("{} has {}{}; {}:{}{}", wanted.repo, count, with,
                                       found.empty() ? "it has" : "say which", each, fmt::join(listed, each)));
}

/// In the cache.
fs::path folder_of(const fs::path& cache, const std::string& repo) {
  std::string folder = "models--" + repo;
  folder.replace(folder.find('/'), 1, "--");
  return cache / folder;
}

/// Empty: the cache doesn't know this revision.
std::string commit_of(const fs::path& repo, const std::string& revision) {
  std::string commit;
  std::ifstream(repo / "refs" / revision) >> commit;
  return commit;
}

struct Found {
  std::string sha256, commit;
  std::uint64_t size = 0;
};

/// The hub says all of a large file before it redirects to where its bytes are.
Found find(WebClient& client, const Hub& hub, const HubFile& wanted, const server::Url& url, Progress& progress) {
  const WebReply head =
      ask_patiently(client, {.method = "HEAD", .url = url, .authorization = authorization(hub), .leaves_host = false},
                    name_of(wanted), progress);
  if (head.status >= 400) refuse(hub, wanted, head);
  std::string tag = head.field("x-linked-etag");
  std::string size = head.field("x-linked-size");
  if (tag.empty()) tag = head.field("etag");
  if (size.empty()) size = head.status == 200 ? head.field("content-length") : "";
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  Found found{.sha256 = tag, .commit = head.field("x-repo-commit")};
  std::from_chars(size.data(), size.data() + size.size(), found.size);
  if (!is_hex(found.sha256, kSha256) || !is_hex(found.commit, kCommit))
    throw WebFailure(fmt::format("{} doesn't say the SHA-256 and the commit of {}: it is not fetched.",
                                 head.url.authority(), wanted.file),
                     false);
  return found;
}

fs::path pull_file(WebClient& client, const Hub& hub, const HubFile& wanted, Progress& progress) {
  const server::Url url =
      url_of(hub, fmt::format("/{}/resolve/{}/{}", wanted.repo, encoded_step(wanted.revision), encoded(wanted.file)));
  const Found found = find(client, hub, wanted, url, progress);
  const fs::path repo = folder_of(hub.cache, wanted.repo), blob = repo / "blobs" / found.sha256;
  download(client,
           {.name = wanted.file,
            .url = url,
            .authorization = authorization(hub),
            .target = blob,
            .growing = blob.string() + ".incomplete",
            .sha256 = found.sha256,
            .size = found.size,
            .forbidden = forbidden(hub, wanted)},
           progress);
  const fs::path file = repo / "snapshots" / found.commit / wanted.file;
  std::error_code ignored;
  if (!fs::equivalent(file, blob, ignored)) replace_link(file, blob.lexically_relative(file.parent_path()));
  const bool is_known = wanted.revision == found.commit || commit_of(repo, wanted.revision) == found.commit;
  if (!is_known) replace_file(repo / "refs" / wanted.revision, found.commit);
  return file;
}

/// All parts of a model in several files.
fs::path pull_parts(WebClient& client, const Hub& hub, HubFile wanted, Progress& progress) {
  const auto part = model_part(wanted.file);
  if (!part) return pull_file(client, hub, wanted, progress);
  if (part->number < 1 || part->number > part->of)
    throw std::runtime_error(
        fmt::format("{} can't be: it says part {} of {}.", name_of(wanted), part->number, part->of));
  fs::path first;
  for (int i = 1; i <= part->of; ++i) {
    wanted.file = with_number(wanted.file, i);
    const fs::path file = pull_file(client, hub, wanted, progress);
    if (i == 1) first = file;
  }
  return first;
}

}  // namespace

PulledModel pull_from_hub(WebClient& client, const Hub& hub, HubFile wanted, Progress& progress) {
  if (!wanted.file.empty()) return {.file = pull_parts(client, hub, wanted, progress)};
  const std::vector<std::string> files = list_files(client, hub, wanted, progress);
  wanted.file = only_file(wanted, files);
  PulledModel model{.file = pull_parts(client, hub, wanted, progress)};
  const fs::path folder = fs::path(wanted.file).parent_path();
  for (const std::string& file : projectors(files))
    if (fs::path(file).parent_path() == folder)
      model.projectors.push_back({.repo = wanted.repo, .revision = wanted.revision, .file = file});
  return model;
}

std::optional<fs::path> find_in_hub_cache(const fs::path& cache, HubFile wanted) {
  const fs::path repo = folder_of(cache, wanted.repo);
  std::string commit = commit_of(repo, wanted.revision);
  if (commit.empty()) commit = wanted.revision;
  if (!is_hex(commit, kCommit)) return std::nullopt;
  const fs::path snapshot = repo / "snapshots" / commit;
  std::error_code error;
  if (wanted.file.empty()) {
    std::vector<std::string> files;
    for (fs::recursive_directory_iterator it(snapshot, error), end; !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (fs::is_regular_file(it->path(), ignored)) files.push_back(it->path().lexically_relative(snapshot).string());
    }
    if (fitting(wanted, files).empty()) return std::nullopt;
    wanted.file = only_file(wanted, files);
  }
  const auto part = model_part(wanted.file);
  for (int i = part ? std::max(part->of, 1) : 1; i >= 1; --i) {  // of a model in parts the first is served
    if (part) wanted.file = with_number(wanted.file, i);
    if (!fs::is_regular_file(snapshot / wanted.file, error)) return std::nullopt;
  }
  return snapshot / wanted.file;
}

}  // namespace coppice::pull
