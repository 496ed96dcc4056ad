// encode(): changes of the cache as batches of KV events, in the form in which vLLM sends them and routers read them.
// Any thread.
//
// A batch is MessagePack: [time, [event...], rank]. An event is a map, with its kind under "type"
//   BlockStored       block_hashes (64-bit numbers), parent_block_hash (nil: the first of a text), token_ids,
//                     block_size, lora_id (nil), medium, lora_name (or nil), extra_keys (left out if there are none),
//                     group_idx, kv_cache_spec_kind
//   BlockRemoved      block_hashes, medium, group_idx
//   AllBlocksCleared  nothing else
// medium: GPU, the pool; CPU, the host's memory; DISK. AllBlocksCleared is about all of them, so what one medium
// loses is told block by block.
//
// Blocks that follow each other in a text share an event. extra_keys has one array a block, or nil: the adapter's name;
// [digest, offset] of each picture, whose rows have the token 0; and in a text's first block its salt.
//
// Only blocks of the full group are told: routers look at no other group.
//
// A new field: encode.cpp writes it. What it needs of a block goes through Changes::One (changes.h). There it comes
// from the tree (kv/tree_observer.h) and, of blocks in stores, from their pieces' heads (tier/store_observer.h,
// stored_blocks.cpp).
#pragma once

#include <string>
#include <vector>

#include "events/changes.h"
#include "events/event_names.h"

namespace coppice::events {

struct EncodeOptions {
  int block_size = 32;
  EventNames names;
  std::size_t most_blocks = 4096;  ///< in a batch
};

/// One MessagePack text for each batch. `seconds`: since 1970. Without changes there is no batch. Throws
/// std::bad_alloc.
std::vector<std::string> encode(const Changes& changes, const EncodeOptions& options, double seconds);

}  // namespace coppice::events
