#include "model/content_hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "model/sha256.h"

namespace coppice::model {

namespace {

constexpr std::size_t kRemembered = 256;               // files
constexpr std::size_t kAtOnce = std::size_t{1} << 20;  // bytes read at a time
constexpr std::int64_t kYoung = 2'000'000'000;         // nanoseconds: written again, it might show no other time
constexpr std::string_view kFormat = "coppice-hashes 1";

// The hashes of files, in the order in which they were used, the last first.
class Remembered {
 public:
  explicit Remembered(std::filesystem::path file) : file_(std::move(file)) {
    std::ifstream in(file_);
    std::string line;
    if (!std::getline(in, line) || line != kFormat) return;
    while (std::getline(in, line)) lines_.push_back(line);
  }

  std::string find(const ModelPart& part) const {
    const auto has = [end = ending(part)](const std::string& line) {
      return line.size() == kHexDigits + end.size() && line.ends_with(end);
    };
    const auto line = std::ranges::find_if(lines_, has);
    return line == lines_.end() ? std::string() : line->substr(0, kHexDigits);
  }

  // The folder's other users see the old file or the new one.
  void add(const ModelPart& part, const std::string& hash) {
    if (file_.empty() || part.path.contains('\n')) return;
    std::erase_if(lines_, [path = " " + part.path](const std::string& line) { return line.ends_with(path); });
    lines_.insert(lines_.begin(), hash + ending(part));
    if (lines_.size() > kRemembered) lines_.resize(kRemembered);
    const std::filesystem::path aside = file_.string() + fmt::format(".{}", ::getpid());
    std::error_code error;
    std::filesystem::create_directories(file_.parent_path(), error);
    {
      std::ofstream out(aside);
      out << kFormat << '\n';
      for (const std::string& line : lines_) out << line << '\n';
      if (!out.flush()) {
        std::filesystem::remove(aside, error);
        return;
      }
    }
    std::filesystem::rename(aside, file_, error);
  }

 private:
  static constexpr std::size_t kHexDigits = 64;
  static std::string ending(const ModelPart& part) {
    const FileIdentity& id = part.identity;
    return fmt::format(" {} {} {} {} {}", id.device, id.inode, id.size, id.changed_ns, part.path);
  }

  std::filesystem::path file_;
  std::vector<std::string> lines_;
};

std::string hash_of(const ModelPart& part, const std::function<bool()>& stop) {
  const int fd = ::open(part.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return {};
  Sha256 hash;
  std::vector<std::byte> bytes(kAtOnce);
  ssize_t n = 0;
  bool ok = identity_of(fd) == part.identity;
  while (ok && (n = ::read(fd, bytes.data(), bytes.size())) > 0) {
    hash.add(std::span(bytes).first(static_cast<std::size_t>(n)));
    ok = !stop || !stop();
  }
  ok = ok && n == 0 && identity_of(fd) == part.identity;
  ::close(fd);
  return ok ? hash.hex() : std::string();
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string content_hash(std::span<const ModelPart> files, const std::filesystem::path& remembered,
                         const std::function<bool()>& stop) {
  Remembered known(remembered);
  Sha256 all;
  for (const ModelPart& part : files) {
    std::string hash = known.find(part);
    if (hash.empty()) {
      const bool young = now_ns() - part.identity.changed_ns < kYoung;
      hash = hash_of(part, stop);
      if (hash.empty()) return {};
      if (!young) known.add(part, hash);
    }
    all.add(std::as_bytes(std::span(hash)));
  }
  return all.hex();
}

}  // namespace coppice::model
