// What a DiskFolder tells its observer.
#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "tier/disk/disk_folder.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/piece_transfer.h"
#include "tier/piece.h"
#include "tier/seal.h"

namespace coppice::tier {

namespace {

constexpr int kHeadsInTurn = 64;

}  // namespace

void DiskFolder::observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) {
  const check::Lock lock(mutex_);
  observer_ = &observer;
  observed_ = model;
  watch(index_);
}

bool DiskFolder::observes(const Name& name) const {
  const check::Lock lock(mutex_);
  return observer_ != nullptr && name.model == observed_;
}

void DiskFolder::watch(PieceIndex& index) {
  untold_.clear();
  if (observer_ == nullptr) return;
  index.on_told_left([observer = observer_](const Name& name) { observer->left(StoreKind::kDisk, name); });
  untold_ = index.held(observed_);
}

void DiskFolder::tell(const Name& name, PieceIndex::Piece& piece, std::span<const std::byte> head) {
  if (!open_ || observer_ == nullptr || name.model != observed_ || piece.told) return;
  if (head.empty()) return untold_.push_back(name);  // nobody observed when its write began
  const auto opened = open_head(head);
  piece.told = opened && !opened->origin.empty();
  if (piece.told) observer_->entered(StoreKind::kDisk, name, *opened);
}

std::optional<Name> DiskFolder::next_untold() {
  while (open_ && !untold_.empty()) {
    const Name name = untold_.back();
    untold_.pop_back();
    const PieceIndex::Piece* const piece = index_.find(name);
    if (piece != nullptr && piece->stage == PieceIndex::Stage::kHeld && !piece->told) return name;
  }
  return {};
}

bool DiskFolder::tell_some(const Unseal& unseal) {
  alignas(kBufferAlignment) std::array<std::byte, kHeadBytes + 2 * kBufferAlignment> bytes;
  for (int i = 0; i < kHeadsInTurn; ++i) {
    std::optional<Name> name;
    {
      const check::Lock lock(mutex_);
      name = next_untold();
      if (!name) return false;
      ++under_way_;
    }
    const UnderWay under_way(*this);
    const auto ends = read_ends(files_, path_of(*name), bytes, unseal ? Seal::kBytes : 0);
    if (!ends || ends->head.empty() || (unseal && !unseal(*name, ends->head, ends->end)))
      continue;  // whoever loads it sees that
    const check::Lock lock(mutex_);
    PieceIndex::Piece* const piece = index_.find(*name);
    if (piece != nullptr && piece->stage == PieceIndex::Stage::kHeld) tell(*name, *piece, ends->head);
  }
  return true;
}

}  // namespace coppice::tier
