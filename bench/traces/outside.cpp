#include "outside.h"

#include <cstddef>
#include <utility>

#include "engine/piece_names.h"
#include "kv/digest.h"
#include "tier/disk/piece_index.h"
#include "tier/store.h"

namespace coppice::bench {

/// All that it is offered is there at once.
class Outside::Names final : public tier::Store {
 public:
  explicit Names(std::int64_t most) : most_(static_cast<std::size_t>(most)) {}

  bool use(const tier::Name& name) {
    tier::PieceIndex::Piece* const piece = index_.find(name);
    if (piece != nullptr) index_.use(*piece, ++now_);
    return piece != nullptr;
  }
  std::int64_t written() const { return written_; }

  void find(std::vector<tier::Name> names, Found done) override {
    std::vector<bool> held;
    for (const tier::Name& name : names) held.push_back(use(name));
    done(std::move(held));
  }
  void load(const tier::Name& name, tier::Buffer into, Loaded done) override {
    use(name);
    into.set_size(0);
    done(std::move(into));
  }
  bool offer(const tier::Name& name, tier::Buffer) override {
    if (use(name)) return true;
    while (index_.n_held() >= most_) {
      index_.doom(*index_.oldest());
      const tier::Name oldest = *index_.begin_removal();
      index_.erase(oldest);
    }
    index_.take(name);
    index_.begin_write(*index_.find(name), 1);
    index_.hold(*index_.find(name), ++now_);
    ++written_;
    return true;
  }
  void forget(const tier::Which&) override { index_.clear(); }
  bool is_at(tier::StoreKind) const override { return true; }
  std::vector<tier::Counters> places() const override { return {}; }
  void stop(tier::Clock::time_point) override {}

 private:
  const std::size_t most_;
  tier::PieceIndex index_;
  std::int64_t now_ = 0, written_ = 0;
};

Outside::Outside(kv::Cache& cache, std::int64_t pieces, bool all_evicted)
    : cache_(cache), names_(std::make_shared<Names>(pieces)), outflow_(cache, info_, config_, figures_) {
  constexpr std::size_t kBuffers = std::size_t{1} << 12;
  info_.block_size = cache.config().block_size;
  info_.groups = cache.config().groups;
  config_.store = names_;
  config_.stores = std::make_shared<tier::Buffers>(kBuffers, engine::largest_piece(info_));
  config_.all_evicted = all_evicted;
  cache_.on_eviction([this](const kv::Storable& one) { outflow_.evicted(one); });
}

Outside::~Outside() {
  cache_.on_eviction(nullptr);
}

std::int32_t Outside::reach(std::span<const kv::Token> prompt, std::int32_t base) {
  const kv::CacheConfig& config = cache_.config();
  const auto bs = static_cast<std::size_t>(config.block_size);
  const auto space = engine::space_name({});
  kv::Digest digest = kv::root_digest(config.hash, config.model, config.layout, {});
  if (base > 0) {
    const auto blocks = cache_.whole_blocks(prompt.first(static_cast<std::size_t>(base)), {});
    digest = cache_.storables().digest_of(blocks.back()).value();
  }
  auto at = static_cast<std::size_t>(base);
  for (; at + bs < prompt.size(); at += bs) {  // the last token is computed
    digest = kv::block_digest(config.hash, digest, prompt.subspan(at, bs));
    if (!names_->use(engine::piece_name(config_.model, space, digest, 0))) break;
  }
  return static_cast<std::int32_t>(at);
}

void Outside::stepped() {
  std::vector<kv::BlockOp> ops;
  std::vector<std::span<std::byte>> outside;
  outflow_.add_stores(++steps_, ops, outside, /*rests=*/true);
  outflow_.stored(steps_, 0);
}

std::int64_t Outside::written() const {
  return names_->written();
}

}  // namespace coppice::bench
