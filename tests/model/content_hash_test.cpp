// The hash of all bytes tells apart what a sample of them doesn't; it is remembered of a file that stays as it is, and
// of no other.
#include "model/content_hash.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "model/model.h"
#include "support/family_models.h"
#include "support/gguf_writer.h"

namespace coppice::model {
namespace {

namespace fs = std::filesystem;

class ContentHash : public ::testing::Test {
 protected:
  ContentHash() {
    fs::create_directories(folder_);
    test::write_tiny_model({}, file_);
    make_old();
  }
  ~ContentHash() override { fs::remove_all(folder_); }

  void make_old() const { fs::last_write_time(file_, fs::file_time_type::clock::now() - std::chrono::hours(1)); }

  void turn_byte(std::streamoff from_end) const {
    std::fstream file(file_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-from_end, std::ios::end);
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(-from_end, std::ios::end);
    file.put(byte);
  }

  std::string digest() const { return load_model(file_.string()).digest; }
  std::string hash() const { return content_hash(load_model(file_.string()).file->files(), remembered_); }

  fs::path folder_ = test::scratch_folder() / "content-hash";
  fs::path file_ = folder_ / "model.gguf", remembered_ = folder_ / "made/hashes";
};

TEST_F(ContentHash, SeesEveryByte) {
  const std::string hash_before = hash(), digest_before = digest();
  EXPECT_EQ(hash_before.size(), 64U);
  // Of a tensor that is large enough some bytes are in no sample.
  bool beyond_the_sample = false;
  for (std::streamoff at = 1000; at < 60000 && !beyond_the_sample; at += 1000) {
    turn_byte(at);
    make_old();
    EXPECT_NE(hash(), hash_before) << at;
    beyond_the_sample = digest() == digest_before;
    turn_byte(at);
  }
  EXPECT_TRUE(beyond_the_sample);
  make_old();
  EXPECT_EQ(hash(), hash_before);
}

TEST_F(ContentHash, IsRememberedUntilTheFileChanges) {
  const std::string before = hash();
  std::string lines = [&] {
    std::ifstream in(remembered_);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }();
  ASSERT_NE(lines.find(file_.string()), std::string::npos);
  lines[lines.find('\n') + 1] ^= 1;  // proves that what is remembered is used
  std::ofstream(remembered_) << lines;
  EXPECT_NE(hash(), before);
  turn_byte(5);
  make_old();
  const std::string changed = hash();
  turn_byte(5);
  make_old();
  EXPECT_NE(changed, before);
  EXPECT_EQ(hash(), before);
}

TEST_F(ContentHash, NothingIsRememberedOfAFileThatMayChangeUnseen) {
  turn_byte(5);  // now
  EXPECT_FALSE(hash().empty());
  EXPECT_FALSE(fs::exists(remembered_));
}

TEST_F(ContentHash, IsOfTheFileThatTheModelWasReadFrom) {
  const Model model = load_model(file_.string());
  fs::rename(file_, folder_ / "old.gguf");
  test::write_tiny_model({.n_layer = 3}, file_);
  EXPECT_EQ(content_hash(model.file->files(), remembered_), "");
}

TEST_F(ContentHash, StopsAndDoesWithoutACache) {
  const Model model = load_model(file_.string());
  EXPECT_EQ(content_hash(model.file->files(), remembered_, [] { return true; }), "");
  EXPECT_EQ(content_hash(model.file->files(), file_ / "no folder"), content_hash(model.file->files(), remembered_));
}

}  // namespace
}  // namespace coppice::model
