#include "pull/download.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "port/locked_file.h"

namespace coppice::pull {

namespace fs = std::filesystem;

namespace {

constexpr int kTries = 5;
constexpr std::chrono::milliseconds kPause{500};  // doubled with each try in vain

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) { restart(); }

  void restart() {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1)
      throw std::runtime_error("SHA-256 failed");
  }
  void add(std::span<const char> bytes) {
    if (EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) throw std::runtime_error("SHA-256 failed");
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) throw std::runtime_error("SHA-256 failed");
    std::string text;
    for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

/// A file's first bytes, and their hash.
class GrowingFile {
 public:
  explicit GrowingFile(const fs::path& path) : file_(path) {
    std::vector<char> piece(std::size_t{1} << 20);
    while (const std::size_t n = file_.read(have_, piece)) add(std::span(piece).first(n));
  }

  std::uint64_t have() const { return have_; }
  void append(std::span<const char> bytes) {
    file_.append(bytes);
    add(bytes);
  }
  void restart() {
    file_.empty();
    sha256_.restart();
    have_ = 0;
  }
  std::string finish() {
    file_.sync();
    return sha256_.hex();
  }

 private:
  void add(std::span<const char> bytes) {
    sha256_.add(bytes);
    have_ += bytes.size();
  }

  port::LockedFile file_;
  Sha256 sha256_;
  std::uint64_t have_ = 0;
};

void check_room(const WantedFile& file, std::uint64_t have) {
  std::error_code error;
  const fs::space_info space = fs::space(file.target.parent_path(), error);
  if (!error && file.size > have && space.available < file.size - have)
    throw std::runtime_error(fmt::format("{} takes {} bytes more, and {} are free where it goes.", file.name,
                                         file.size - have, space.available));
}

/// Gets the rest. True: it is whole.
bool fetch_rest(WebClient& client, const WantedFile& file, GrowingFile& part, const Progress& progress) {
  WebRequest request{.url = file.url, .authorization = file.authorization};
  if (part.have() > 0) request.fields.emplace_back("Range", fmt::format("bytes={}-", part.have()));
  const auto begun = [&](const WebReply& head) {
    if (head.status == 206 && !head.field("content-range").starts_with(fmt::format("bytes {}-", part.have())))
      throw WebFailure(fmt::format("{} answers with another part than was asked for.", head.url.authority()), false);
    if (head.status == 200 && part.have() > 0) part.restart();  // it knows no parts
    return head.status == 200 || head.status == 206;
  };
  const auto take = [&](std::span<const char> bytes) {
    part.append(bytes);
    if (file.size > 0 && part.have() > file.size)
      throw std::runtime_error(fmt::format("More bytes come than {} has.", file.name));
    progress(file, part.have());
  };
  const WebReply reply = client.ask(request, begun, take);
  if (reply.status == 416 && part.have() > 0) {  // there is no rest: what is there is not its beginning, or all of it
    if (file.size == 0) return true;
    part.restart();
    return false;
  }
  if (reply.status != 200 && reply.status != 206)
    throw WebFailure(fmt::format("{} answers {} for {}.", reply.url.authority(), reply.status, file.name),
                     reply.status >= 500 || reply.status == 429);
  return file.size == 0 || part.have() == file.size;
}

void fetch(WebClient& client, const WantedFile& file, GrowingFile& part, const Progress& progress) {
  auto pause = kPause;
  for (int tries = 0;;) {
    const std::uint64_t before = part.have();
    std::optional<WebFailure> failure;
    try {
      if (fetch_rest(client, file, part, progress)) return;
    } catch (const WebFailure& e) {
      if (!e.again()) throw;
      failure = e;
    }
    if (part.have() > before) tries = 0;
    if (++tries == kTries)
      throw failure ? *failure : WebFailure(fmt::format("{} doesn't come whole.", file.name), true);
    std::this_thread::sleep_for(pause);
    pause *= 2;
  }
}

}  // namespace

void download(WebClient& client, const WantedFile& file, const Progress& progress) {
  std::error_code error;
  const std::uint64_t there = fs::file_size(file.target, error);
  if (!error && (file.size == 0 || there == file.size)) return progress(file, there);
  fs::create_directories(file.target.parent_path());
  fs::create_directories(file.growing.parent_path());
  std::optional<GrowingFile> part;
  try {
    part.emplace(file.growing);
  } catch (const std::system_error& e) {
    if (e.code() != std::errc::resource_unavailable_try_again) throw;
    throw std::runtime_error(fmt::format("Another program fetches {} just now.", file.name));
  }
  if (file.size > 0 && part->have() > file.size) part->restart();
  check_room(file, part->have());
  if (file.size == 0 || part->have() < file.size) fetch(client, file, *part, progress);
  progress(file, part->have());
  if (const std::string sha256 = part->finish(); sha256 != file.sha256) {
    part.reset();
    fs::remove(file.growing, error);
    throw std::runtime_error(
        fmt::format("{} came with SHA-256 {} in place of {}; it is thrown away.", file.name, sha256, file.sha256));
  }
  fs::rename(file.growing, file.target);
}

}  // namespace coppice::pull
