#include "cli/kept_responses.h"

#include <algorithm>
#include <memory>
#include <span>
#include <tuple>

#include "tier/buffers.h"
#include "tier/disk/locked_folder.h"
#include "tier/disk/piece_path.h"
#include "tier/disk/piece_transfer.h"
#include "tier/disk/real_files.h"
#include "tier/piece.h"

namespace coppice::cli {

namespace {

constexpr const char* kResponsesFile = "responses";
constexpr std::string_view kResponsesAbout = "stored responses";

tier::Name responses_name(const std::optional<tier::Seal>& seal) {
  tier::Name name;
  std::ranges::copy(kResponsesAbout, name.piece.begin());
  return seal ? seal->outside(name) : name;
}

}  // namespace

std::string left_responses(const std::filesystem::path& folder, const std::optional<tier::Seal>& seal) {
  const auto files = tier::make_real_files(folder);
  if (!files->open_root()) return "";
  const auto status = files->status(kResponsesFile);
  if (!status) return "";
  tier::Buffers one(1, status->bytes);
  tier::Buffer buffer = one.take();
  const auto read =
      tier::read_piece(*files, kResponsesFile, tier::disk_bytes(status->bytes), buffer.memory(), /*stamp=*/false);
  if (!read) return "";
  buffer.set_size(*read);
  if (seal && !seal->open(responses_name(seal), buffer)) return "";
  const tier::Name name = responses_name({});
  const auto piece = tier::open_piece(buffer.bytes(), &name);
  if (!piece) return "";
  return {reinterpret_cast<const char*>(piece->payload.data()), piece->payload.size()};
}

void forget_responses(const std::filesystem::path& folder) {
  const auto files = tier::make_real_files(folder);
  if (files->open_root()) std::ignore = files->remove(kResponsesFile);
}

std::string keep_responses(const std::filesystem::path& folder, const std::optional<tier::Seal>& seal,
                           std::string_view text) {
  constexpr const char* kAside = "new/responses";
  const std::size_t size = tier::piece_size(0, kResponsesAbout.size(), text.size());
  tier::Buffers one(1, size + tier::Seal::kBytes);
  tier::Buffer buffer = one.take();
  buffer.set_size(size);
  const auto payload = tier::begin_piece(buffer.bytes(), responses_name({}), {}, kResponsesAbout, text.size());
  std::ranges::copy(std::as_bytes(std::span(text)), payload.begin());
  tier::seal_piece(buffer.bytes());
  if (seal && !seal->close(responses_name(seal), buffer)) return "they can't be sealed";
  const auto files = tier::make_real_files(folder);
  if (const auto root = files->open_root(); !root) return tier::error_text(root.error());
  auto written = tier::write_piece(*files, kAside, buffer, /*is_there=*/false);
  if (written) written = files->rename(kAside, kResponsesFile);
  if (written) return "";
  std::ignore = files->remove(kAside);
  return tier::error_text(written.error());
}

}  // namespace coppice::cli
