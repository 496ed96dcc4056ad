#include "server/api/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

namespace coppice::server {

namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
constexpr std::string_view kScheme = "Bearer ";

kv::Digest digest_of(std::string_view key) {
  return kv::sha256(std::as_bytes(std::span(key)));
}

std::string read_file(const std::string& path) {
  std::error_code error;
  // Anything else might block the thread that reads it.
  if (!std::filesystem::is_regular_file(path, error)) throw KeyFileError(error ? error.message() : "it is no file");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (const int reason = errno; !in.is_open()) {
    const std::string words = std::generic_category().message(reason);
    if (reason == EMFILE || reason == ENFILE) throw NoDescriptors(words);
    throw KeyFileError(words);
  }
  std::string text(std::min<std::size_t>(std::filesystem::file_size(path, error), kMaxFileBytes + 1), '\0');
  if (error || !in.read(text.data(), static_cast<std::streamsize>(text.size())))
    throw KeyFileError("it cannot be read");
  if (text.size() > kMaxFileBytes) throw KeyFileError(fmt::format("it is over {} bytes", kMaxFileBytes));
  return text;
}

/// `words` of one line; `name`: where they have none. Throws KeyFileError without its place.
ApiKey parse_line(const std::vector<std::string>& words, std::string name) {
  if (words.size() > 2) throw KeyFileError("more than a name and a key");
  const std::string& key = words.back();
  if (!std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c <= '~'; }))
    throw KeyFileError("a key holds visible ASCII characters only");
  if (words.size() == 2) name = words.front();
  return {std::move(name), digest_of(key)};
}

std::vector<ApiKey> parse(const std::string& text) {
  std::vector<ApiKey> keys;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream stream(line);
    const std::vector<std::string> words{std::istream_iterator<std::string>(stream), {}};
    if (words.empty() || words.front().starts_with('#')) continue;
    try {
      ApiKey key = parse_line(words, fmt::format("line-{}", number));
      for (const ApiKey& other : keys)
        if (other.digest == key.digest) throw KeyFileError("a key that was there before");
      keys.push_back(std::move(key));
    } catch (const KeyFileError& e) {
      throw KeyFileError(fmt::format("line {}: {}", number, e.what()));
    }
  }
  if (keys.empty()) throw KeyFileError("it holds no key");
  return keys;
}

}  // namespace

ApiKeys::ApiKeys(std::string path, const std::vector<std::string>& more) : path_(std::move(path)) {
  for (const std::string& key : more) more_.push_back(parse_line({key}, fmt::format("api-key-{}", more_.size() + 1)));
  keys_ = more_;
  if (!path_.empty()) keys_ = read();
}

std::vector<ApiKey> ApiKeys::read() const {
  if (path_.empty()) return more_;
  const auto sentence = [this](const KeyFileError& e) {
    return fmt::format("Cannot use the API keys in '{}': {}.", path_, e.what());
  };
  try {
    std::vector<ApiKey> keys = parse(read_file(path_));
    keys.insert(keys.end(), more_.begin(), more_.end());
    return keys;
  } catch (const NoDescriptors& e) {
    throw NoDescriptors(sentence(e));
  } catch (const KeyFileError& e) {
    throw KeyFileError(sentence(e));
  }
}

const ApiKey* ApiKeys::find(std::string_view authorization) const {
  if (!boost::beast::iequals(authorization.substr(0, kScheme.size()), kScheme)) return nullptr;
  authorization.remove_prefix(kScheme.size());
  authorization.remove_prefix(std::min(authorization.find_first_not_of(' '), authorization.size()));
  const kv::Digest digest = digest_of(authorization);
  const ApiKey* found = nullptr;
  for (const ApiKey& key : keys_)
    if (CRYPTO_memcmp(key.digest.data(), digest.data(), digest.size()) == 0) found = &key;
  return found;
}

bool ApiKeys::has_tenant(std::string_view salt) const {
  return std::ranges::any_of(keys_, [&](const ApiKey& key) { return tenant_salt(key) == salt; });
}

void ApiKeys::add_tenants(std::set<std::string>& tenants) const {
  for (const ApiKey& key : keys_) tenants.insert(tenant_salt(key));
}

std::string tenant_salt(const ApiKey& key) {
  static_assert(1 + std::tuple_size_v<kv::Digest> == kv::Namespace::kOwnerBytes);
  std::string salt(1, kv::Namespace::kOwnerMark);
  return salt.append(key.digest.begin(), key.digest.end());
}

}  // namespace coppice::server
