// Block identity: a digest chained over a block's predecessors, H(parent, text), with the whole digest of each medium;
// a chain's first parent is H(model, layout, salt, adapter). Equal digests mean equal keys and values, in this process
// and in any other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kv/namespace.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

/// A cryptographic hash of a byte string. Tests pass a constant one: tokens are compared as well, so text stays right.
using HashFn = std::function<Digest(std::span<const std::byte>)>;

/// SHA-256 (OpenSSL EVP, uses SHA-NI). Throws std::runtime_error when the library refuses.
Digest sha256(std::span<const std::byte> bytes);

/// The parent of a namespace's first block.
Digest root_digest(const HashFn& hash, const std::string& model, const std::string& layout, const Namespace& ns);

/// The digest of a full block.
Digest block_digest(const HashFn& hash, const Digest& parent, TextView text);

}  // namespace coppice::kv
