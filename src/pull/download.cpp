#include "pull/download.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include "port/locked_file.h"
#include "pull/names.h"
#include "pull/tries.h"

namespace coppice::pull {

namespace fs = std::filesystem;

namespace {

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
    is_old_ = have_ > 0;
  }

  std::uint64_t have() const { return have_; }
  /// It begins with what lay there when it was opened.
  bool is_old() const { return is_old_; }
  void append(std::span<const char> bytes) {
    file_.append(bytes);
    add(bytes);
  }
  void restart() {
    file_.empty();
    sha256_.restart();
    have_ = 0;
    is_old_ = false;
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
  bool is_old_ = false;
};

void check_room(const WantedFile& file, std::uint64_t have) {
  std::error_code error;
  const fs::space_info space = fs::space(file.target.parent_path(), error);
  if (!error && file.size > have && space.available < file.size - have)
    throw std::runtime_error(fmt::format("{} takes {} bytes more, and {} are free where it goes.", file.name,
                                         file.size - have, space.available));
}

/// Throws WebFailure: the answer is another file, as a page on which to log in.
void check_head(const WantedFile& file, const WebReply& head, std::uint64_t have) {
  const std::string at = head.url.authority();
  if (head.status == 206 && !head.field("content-range").starts_with(fmt::format("bytes {}-", have)))
    throw WebFailure(fmt::format("{} answers with another part than was asked for.", at), false);
  if (head.status != 200) return;
  const std::string length = head.field("content-length"), type = head.field("content-type");
  const bool other =
      file.size == 0 || length.empty() ? type.starts_with("text/html") : length != std::to_string(file.size);
  if (other)
    throw WebFailure(
        fmt::format("{} answers with something else than {}: {} bytes, {}.", at, file.name,
                    length.empty() ? "some" : shown(length), type.empty() ? "of no known type" : shown(type)),
        false);
}

/// Gets the rest. True: it is whole.
bool fetch_rest(WebClient& client, const WantedFile& file, GrowingFile& part, Progress& progress) {
  WebRequest request{.url = file.url, .authorization = file.authorization};
  if (part.have() > 0) request.fields.emplace_back("Range", fmt::format("bytes={}-", part.have()));
  const auto begun = [&](const WebReply& head) {
    check_head(file, head, part.have());
    if (head.status == 200 && part.have() > 0) part.restart();  // it knows no parts
    return head.status == 200 || head.status == 206;
  };
  const auto take = [&](std::span<const char> bytes) {
    part.append(bytes);
    if (file.size > 0 && part.have() > file.size)
      throw std::runtime_error(fmt::format("More bytes come than {} has.", file.name));
    progress.has(file, part.have());
  };
  const WebReply reply = client.ask(request, begun, take);
  if (reply.status == 416 && part.have() > 0) {  // there is no rest: what is there is not its beginning, or all of it
    if (file.size == 0) return true;
    part.restart();
    return false;
  }
  const bool of_hub = reply.url.authority() == file.url.authority();  // and not of a store to which it redirects
  if ((reply.status == 401 || reply.status == 403) && of_hub && !file.forbidden.empty())
    throw WebFailure(file.forbidden, false);
  if (reply.status == 403 && !of_hub)  // the store's URL may have expired: the hub names a new one
    throw WebFailure(status_failure(reply, file.name).what(), true);
  if (reply.status != 200 && reply.status != 206) throw status_failure(reply, file.name);
  return file.size == 0 || part.have() == file.size;
}

void fetch(WebClient& client, const WantedFile& file, GrowingFile& part, Progress& progress) {
  std::uint64_t most = part.have();
  for (Tries tries(progress);;) {
    WebFailure failure(fmt::format("{} doesn't come whole.", file.name), true);
    try {
      if (fetch_rest(client, file, part, progress)) return;
    } catch (const WebFailure& e) {
      failure = e;
    }
    if (part.have() > most) tries.restart();
    most = std::max(most, part.have());
    tries.wait(failure);
  }
}

}  // namespace

void download(WebClient& client, const WantedFile& file, Progress& progress) {
  std::error_code error;
  const std::uint64_t there = fs::file_size(file.target, error);
  if (!error && (file.size == 0 || there == file.size)) return progress.has(file, there);
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
  for (;;) {
    check_room(file, part->have());
    if (file.size == 0 || part->have() < file.size) fetch(client, file, *part, progress);
    progress.has(file, part->have());
    const std::string sha256 = part->finish();
    if (sha256 == file.sha256) return fs::rename(file.growing, file.target);
    if (!part->is_old()) {
      part.reset();
      fs::remove(file.growing, error);
      throw std::runtime_error(
          fmt::format("{} came with SHA-256 {} in place of {}; it is thrown away.", file.name, sha256, file.sha256));
    }
    part->restart();
    progress.says(
        fmt::format("{} is not what it should be: what an earlier call left of it is thrown away, and it is fetched "
                    "from the beginning.",
                    file.name));
  }
}

}  // namespace coppice::pull
