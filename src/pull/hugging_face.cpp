#include "pull/hugging_face.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <charconv>
#include <fstream>
#include <optional>
#include <regex>
#include <stdexcept>
#include <vector>

namespace coppice::pull {

namespace fs = std::filesystem;
namespace json = boost::json;

namespace {

/// Of a repository or a file: nothing that leaves a folder.
bool is_path(const std::string& text) {
  static const std::regex step("[A-Za-z0-9][A-Za-z0-9._ +-]*");
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    if (!std::regex_match(text.substr(begin, end - begin), step)) return false;
    begin = end + 1;
  }
  return true;
}

std::string encoded(const std::string& path) {
  std::string text;
  for (const char c : path) text += c == ' ' ? "%20" : c == '+' ? "%2B" : std::string(1, c);
  return text;
}

std::string authorization(const Hub& hub) {
  return hub.token.empty() ? "" : "Bearer " + hub.token;
}

server::Url url_of(const Hub& hub, const std::string& target) {
  const auto url = server::parse_url(hub.endpoint + target);
  if (!url) throw std::runtime_error(fmt::format("HF_ENDPOINT is no URL: {}", hub.endpoint));
  return *url;
}

/// What a status other than 200 means to people.
[[noreturn]] void refuse(const Hub& hub, const HubFile& wanted, const WebReply& reply) {
  const std::string what = wanted.file.empty() ? wanted.repo : wanted.repo + "/" + wanted.file;
  if (reply.status == 401 || reply.status == 403)
    throw std::runtime_error(fmt::format("{} is not for everybody, or isn't there: {}.", what,
                                         hub.token.empty() ? "HF_TOKEN may hold a token of somebody who may have it"
                                                           : "the token in HF_TOKEN may not have it"));
  if (reply.status == 404) throw std::runtime_error(fmt::format("There is no {} at {}.", what, hub.endpoint));
  throw WebFailure(fmt::format("{} answers {} for {}.", reply.url.authority(), reply.status, what),
                   reply.status >= 500);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// The repository's only GGUF file that is a model's, or its first part.
std::string only_file(WebClient& client, const Hub& hub, const HubFile& wanted) {
  const WebReply reply =
      client.ask({.url = url_of(hub, fmt::format("/api/models/{}/revision/{}", wanted.repo, encoded(wanted.revision))),
                  .authorization = authorization(hub)});
  if (reply.status != 200) refuse(hub, wanted, reply);
  static const std::regex later_part(".*-[0-9]{5}-of-[0-9]{5}\\.gguf");
  std::vector<std::string> files;
  boost::system::error_code error;
  const json::value answer = json::parse(reply.body, error);
  const json::value* siblings = error || !answer.is_object() ? nullptr : answer.as_object().if_contains("siblings");
  if (siblings == nullptr || !siblings->is_array())
    throw WebFailure(fmt::format("{} answers with something else than a list of files.", reply.url.authority()), false);
  for (const json::value& sibling : siblings->as_array()) {
    const json::value* name = sibling.is_object() ? sibling.as_object().if_contains("rfilename") : nullptr;
    if (name == nullptr || !name->is_string()) continue;
    const std::string file(name->as_string()), low = lower(file);
    if (!low.ends_with(".gguf") || low.contains("mmproj")) continue;
    if (std::regex_match(low, later_part) && !low.contains("-00001-of-")) continue;
    files.push_back(file);
  }
  std::ranges::sort(files);
  if (files.size() == 1) return files.front();
  if (files.empty()) throw std::runtime_error(fmt::format("{} has no GGUF file.", wanted.repo));
  throw std::runtime_error(fmt::format("{} has {} GGUF files; say which:\n  hf:{}/{}", wanted.repo, files.size(),
                                       wanted.repo, fmt::join(files, fmt::format("\n  hf:{}/", wanted.repo))));
}

struct Found {
  std::string sha256, commit;
  std::uint64_t size = 0;
};

/// The hub says all of a large file before it redirects to where its bytes are.
Found find(WebClient& client, const Hub& hub, const HubFile& wanted, const server::Url& url) {
  const WebReply head =
      client.ask({.method = "HEAD", .url = url, .authorization = authorization(hub), .leaves_host = false});
  if (head.status >= 400) refuse(hub, wanted, head);
  std::string tag = head.field("x-linked-etag");
  std::string size = head.field("x-linked-size");
  if (tag.empty()) tag = head.field("etag");
  if (size.empty()) size = head.status == 200 ? head.field("content-length") : "";
  if (tag.starts_with("W/")) tag.erase(0, 2);
  std::erase(tag, '"');
  static const std::regex hash("[0-9a-f]{64}"), commit("[0-9a-f]{40}");
  Found found{.sha256 = tag, .commit = head.field("x-repo-commit")};
  std::from_chars(size.data(), size.data() + size.size(), found.size);
  if (!std::regex_match(found.sha256, hash) || !std::regex_match(found.commit, commit))
    throw WebFailure(fmt::format("{} doesn't say the SHA-256 and the commit of {}: it is not fetched.",
                                 head.url.authority(), wanted.file),
                     false);
  return found;
}

fs::path pull_file(WebClient& client, const Hub& hub, const HubFile& wanted, const Progress& progress) {
  const server::Url url =
      url_of(hub, fmt::format("/{}/resolve/{}/{}", wanted.repo, encoded(wanted.revision), encoded(wanted.file)));
  const Found found = find(client, hub, wanted, url);
  std::string folder = "models--" + wanted.repo;
  folder.replace(folder.find('/'), 1, "--");
  const fs::path repo = hub.cache / folder, blob = repo / "blobs" / found.sha256;
  download(client,
           {.name = wanted.file,
            .url = url,
            .authorization = authorization(hub),
            .target = blob,
            .growing = blob.string() + ".incomplete",
            .sha256 = found.sha256,
            .size = found.size},
           progress);
  const fs::path file = repo / "snapshots" / found.commit / wanted.file;
  fs::create_directories(file.parent_path());
  std::error_code ignored;
  fs::remove(file, ignored);
  fs::create_symlink(blob.lexically_relative(file.parent_path()), file);
  const fs::path ref = repo / "refs" / wanted.revision;
  fs::create_directories(ref.parent_path());
  std::ofstream(ref) << found.commit;
  return file;
}

}  // namespace

HubFile parse_hub_file(const std::string& text) {
  HubFile wanted;
  const std::size_t owner = text.find('/');
  const std::size_t repo = owner == text.npos ? text.npos : text.find('/', owner + 1);
  wanted.repo = text.substr(0, repo);
  if (repo != text.npos) wanted.file = text.substr(repo + 1);
  if (const std::size_t at = wanted.repo.find('@'); at != text.npos) {
    wanted.revision = wanted.repo.substr(at + 1);
    wanted.repo.resize(at);
  }
  if (owner == text.npos || !is_path(wanted.repo) || !is_path(wanted.revision) ||
      (!wanted.file.empty() && !is_path(wanted.file)) || (repo != text.npos && wanted.file.empty()))
    throw std::runtime_error(fmt::format("'hf:{}' is not hf:OWNER/REPO/FILE or hf:OWNER/REPO.", text));
  return wanted;
}

fs::path pull_from_hub(WebClient& client, const Hub& hub, HubFile wanted, const Progress& progress) {
  if (wanted.file.empty()) wanted.file = only_file(client, hub, wanted);
  static const std::regex part("(.*)-([0-9]{5})-of-([0-9]{5})(\\.gguf)", std::regex::icase);
  std::smatch found;
  const std::string whole = wanted.file;
  if (!std::regex_match(whole, found, part)) return pull_file(client, hub, wanted, progress);
  fs::path first;
  for (int i = 1, n = std::stoi(found[3]); i <= n; ++i) {
    wanted.file = fmt::format("{}-{:05}-of-{}{}", found[1].str(), i, found[3].str(), found[4].str());
    const fs::path file = pull_file(client, hub, wanted, progress);
    if (i == 1) first = file;
  }
  return first;
}

}  // namespace coppice::pull
