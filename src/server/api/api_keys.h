// ApiKeys: who may use the server: keys from a file, of which only the SHA-256 is kept.
//
// The file: one key a line, a name before it if wanted ("alice sk-..."). Empty lines and lines that begin with '#'
// don't count. Names are for the log.
//
// Not thread safe.
//
// Invariants
//   1. A search compares with every key, in constant time: how long it takes tells nothing about the keys.
//   2. A file that cannot be used leaves the keys as they were: reading them and replacing them are two steps.
#pragma once

#include <cstddef>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/digest.h"

namespace coppice::server {

/// The file cannot be used; what() is a sentence for the operator. It quotes no key.
class KeyFileError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Only for now: the process has no descriptor left to read it with.
class NoDescriptors : public KeyFileError {
 public:
  using KeyFileError::KeyFileError;
};

struct ApiKey {
  std::string name;  ///< for logs; one that the operator didn't name is line-3, by its place in the file, or api-key-1
  kv::Digest digest{};
};

class ApiKeys {
 public:
  /// `more`: keys besides the file's. Neither a path nor keys: everybody may come in. Throws KeyFileError.
  explicit ApiKeys(std::string path = "", const std::vector<std::string>& more = {});

  /// What the file holds now, for replace(). Throws KeyFileError.
  std::vector<ApiKey> read() const;
  void replace(std::vector<ApiKey> keys) noexcept { keys_ = std::move(keys); }

  bool wanted() const { return !path_.empty() || !more_.empty(); }
  const std::string& path() const { return path_; }
  std::size_t size() const { return keys_.size(); }

  /// The key of an Authorization field ("Bearer ..."); null: none of ours. Valid until replace().
  const ApiKey* find(std::string_view authorization) const;
  /// Is it some key's tenant_salt()?
  bool has_tenant(std::string_view salt) const;
  void add_tenants(std::set<std::string>& tenants) const;

 private:
  std::string path_;
  std::vector<ApiKey> more_;
  std::vector<ApiKey> keys_;  ///< all
};

/// What goes before the salts of a key's requests, so that they share the cache with no other key's, and stands for the
/// key wherever something is somebody's. No two pairs of a key and a request's own salt give the same: this has a fixed
/// length. Nor does a request without a key ever give one of them: the first byte is in no UTF-8 text, which such a
/// request's salt is.
std::string tenant_salt(const ApiKey& key);

}  // namespace coppice::server
