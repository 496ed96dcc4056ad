#include "tier/disk/folder_report.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <utility>

#include "tier/disk/piece_path.h"
#include "tier/piece.h"
#include "tier/seal.h"

namespace coppice::tier {

namespace {

/// "": it is a cache's folder, and open now.
std::string open_as_cache(FileSystem& files) {
  const auto root = files.open_root();
  if (!root) return "can't be opened: " + error_text(root.error());
  return files.status("kv") ? "" : "is no cache of coppice";
}

Result<std::vector<std::byte>> contents_of(FileSystem& files, const std::string& path) {
  const auto number = files.open(path);
  if (!number) return std::unexpected(number.error());
  const OpenFile file(files, *number);
  const auto status = files.status(*number);
  if (!status) return std::unexpected(status.error());
  std::vector<std::byte> bytes(status->bytes);
  for (std::size_t done = 0; done < bytes.size();) {
    const auto got = files.read(*number, done, std::span(bytes).subspan(done));
    if (!got) return std::unexpected(got.error());
    if (*got == 0) break;
    done += *got;
  }
  return bytes;
}

}  // namespace

std::expected<FolderReport, std::string> report_folder(FileSystem& files) {
  if (std::string why = open_as_cache(files); !why.empty()) return std::unexpected(std::move(why));
  std::map<std::array<std::uint8_t, 16>, ModelPieces> models;
  FolderReport report;
  const auto contents = look_through(files, [&](const Name& name, const FileSystem::Status& status) {
    ModelPieces& model = models[name.model];
    if (model.n == 0) model.id = to_string(name).substr(0, 2 * name.model.size());
    if (model.about.empty() && model.n < 8) {  // of the first few, one opens
      const auto bytes = contents_of(files, path_of(name));
      if (const auto piece = bytes ? open_piece(*bytes, &name) : std::unexpected(Flaw::kLength))
        model.about = piece->about;
    }
    model.first_used = model.n == 0 ? status.used : std::min(model.first_used, status.used);
    model.last_used = std::max(model.last_used, status.used);
    ++model.n;
    model.bytes += disk_bytes(status.bytes);
    return true;
  });
  if (!contents) return std::unexpected("can't be read: " + error_text(contents.error()));
  report.contents = *contents;
  for (auto& [id, model] : models) report.models.push_back(std::move(model));
  std::ranges::sort(report.models, std::greater(), &ModelPieces::bytes);
  const auto lock = files.lock("lock");
  report.in_use = !lock && lock.error() == EWOULDBLOCK;
  if (lock) files.close(*lock);
  return report;
}

std::expected<CheckedPieces, std::string> check_folder(
    FileSystem& files, const std::function<void(const std::string& path, std::string_view why)>& damaged) {
  if (std::string why = open_as_cache(files); !why.empty()) return std::unexpected(std::move(why));
  CheckedPieces checked;
  const auto looked = look_through(files, [&](const Name& name, const FileSystem::Status&) {
    const auto bytes = contents_of(files, path_of(name));
    if (!bytes && bytes.error() == ENOENT) return true;  // its server removed it meanwhile
    if (bytes) checked.bytes += bytes->size();
    if (bytes && Seal::is_sealed(*bytes)) {
      ++checked.sealed;
      return true;
    }
    const auto piece = bytes ? open_piece(*bytes, &name) : std::unexpected(Flaw::kLength);
    ++(piece ? checked.whole : checked.damaged);
    if (!bytes) {
      damaged(path_of(name), error_text(bytes.error()));
    } else if (!piece) {
      damaged(path_of(name), to_string(piece.error()));
    }
    return true;
  });
  if (!looked) return std::unexpected("can't be read: " + error_text(looked.error()));
  return checked;
}

}  // namespace coppice::tier
