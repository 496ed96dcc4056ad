#include "events/stored_blocks.h"

#include <cstring>
#include <exception>
#include <utility>

namespace coppice::events {

namespace {

Medium medium_of(tier::StoreKind place) {
  return place == tier::StoreKind::kHost ? Medium::kHost : Medium::kDisk;
}

}  // namespace

std::size_t StoredBlocks::HashOfDigest::operator()(const kv::Digest& digest) const {
  std::size_t hash = 0;
  std::memcpy(&hash, digest.data(), sizeof hash);
  return hash;
}

void StoredBlocks::add(News news) noexcept {
  bool was_empty = false;
  {
    const check::Lock lock(mutex_);
    was_empty = news_.empty() && !lost_;
    try {
      news_.push_back(std::move(news));
    } catch (const std::exception&) {
      lost_ = true;
      news_.clear();
    }
  }
  if (was_empty && changed_) changed_();
}

void StoredBlocks::entered(tier::StoreKind place, const tier::Name& name, const tier::PieceHead& head) noexcept {
  try {
    add({.kind = News::Kind::kEntered,
         .medium = medium_of(place),
         .name = name,
         .inside = head.name,
         .text = {head.text.begin(), head.text.end()},
         .origin = {head.origin.begin(), head.origin.end()}});
  } catch (const std::exception&) {  // nobody is told of it
  }
}

void StoredBlocks::left(tier::StoreKind place, const tier::Name& name) noexcept {
  add({.kind = News::Kind::kLeft, .medium = medium_of(place), .name = name, .inside = {}, .text = {}, .origin = {}});
}

void StoredBlocks::emptied(tier::StoreKind place) noexcept {
  add({.kind = News::Kind::kEmptied, .medium = medium_of(place), .name = {}, .inside = {}, .text = {}, .origin = {}});
}

std::optional<StoredBlocks::Block> StoredBlocks::read(const News& news) const {
  auto origin = kv::read_origin(news.origin);
  auto text = kv::read_text(news.text, options_.block_size);
  if (!origin || !text) return {};
  const kv::Digest digest = kv::block_digest(options_.hash, origin->parent, text->view());
  if (options_.name(digest, origin->ns) != news.inside) return {};
  return Block{.digest = digest, .origin = std::move(*origin), .text = std::move(*text)};
}

// changes: null, if nobody has to be told of it alone.
void StoredBlocks::apply(const News& news, Changes* changes) {
  Blocks& blocks = blocks_[news.medium];
  const auto leave = [&](Blocks::iterator at) {
    if (changes != nullptr) changes->add_left(news.medium, at->second.digest, at->second.origin.ns);
    return blocks.erase(at);
  };
  if (news.kind == News::Kind::kEmptied) {
    for (auto at = blocks.begin(); at != blocks.end();) at = leave(at);
  } else if (const auto found = blocks.find(news.name); news.kind == News::Kind::kLeft) {
    if (found != blocks.end()) leave(found);
  } else if (found == blocks.end()) {
    auto block = read(news);
    if (!block) return;
    const Block& added = blocks.emplace(news.name, std::move(*block)).first->second;
    if (changes != nullptr) add_block(news.medium, added, *changes);
  }
}

void StoredBlocks::add_block(Medium medium, const Block& block, Changes& changes) {
  changes.add_entered(medium, {.digest = block.digest,
                               .parent = block.origin.parent,
                               .is_first = block.origin.is_first,
                               .text = block.text,
                               .ns = &block.origin.ns});
}

// What comes before a block in its text is told before it, as far as it is there.
void StoredBlocks::add_all(Medium medium, const Blocks& blocks, Changes& changes) {
  std::unordered_map<kv::Digest, const Block*, HashOfDigest> rest;
  rest.reserve(blocks.size());
  for (const auto& [name, block] : blocks) rest.emplace(block.digest, &block);
  std::vector<const Block*> path;
  while (!rest.empty()) {
    for (auto at = rest.begin(); at != rest.end(); at = rest.find(path.back()->origin.parent)) {
      path.push_back(at->second);
      rest.erase(at);
    }
    for (; !path.empty(); path.pop_back()) add_block(medium, *path.back(), changes);
  }
}

void StoredBlocks::add_to(Changes& changes) {
  std::vector<News> news;
  bool lost = false;
  {
    const check::Lock lock(mutex_);
    news.swap(news_);
    lost = std::exchange(lost_, false);
  }
  Changes* const told = changes.anew ? nullptr : &changes;
  if (lost) {
    for (const Medium medium : {Medium::kHost, Medium::kDisk})
      apply({.kind = News::Kind::kEmptied, .medium = medium, .name = {}, .inside = {}, .text = {}, .origin = {}}, told);
  }
  for (const News& each : news) apply(each, told);
  if (!changes.anew) return;
  for (const auto& [medium, blocks] : blocks_) add_all(medium, blocks, changes);
}

}  // namespace coppice::events
