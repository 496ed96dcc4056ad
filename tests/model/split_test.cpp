// Models that are split into several files: found by their names, checked by their headers.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "model/complaint.h"
#include "model/model.h"
#include "support/gguf_writer.h"
#include "support/split_gguf.h"

namespace coppice::model {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const std::string& name) {
  return test::scratch_folder() / name;
}

std::string split_tiny(const std::string& name, const test::TinyModel& model = {}) {
  return test::write_tiny_model(model, scratch(name + ".gguf")).string();
}

void expect_words(const std::string& path, const std::vector<std::string>& words) {
  const std::string said = complaint(path);
  for (const std::string& word : words) EXPECT_NE(said.find(word), std::string::npos) << word << " in: " << said;
}

TEST(SplitModel, HasAllTensorsOfTheWholeFile) {
  const std::string path = split_tiny("whole");
  const Model whole = load_model(path);
  for (const bool first_has_tensors : {true, false}) {
    const auto parts = test::split_gguf(path, scratch("split"), {.parts = 4, .first_has_tensors = first_has_tensors});
    const Model split = load_model(parts[0]);
    EXPECT_EQ(split.file->parts(), 4);
    EXPECT_EQ(split.file->name(), "split");
    EXPECT_EQ(split.spec.layers.size(), whole.spec.layers.size());
    ASSERT_EQ(split.file->tensors().size(), whole.file->tensors().size());
    std::set<int> used;
    std::size_t bytes = 0;
    for (const std::string& part : parts) bytes += fs::file_size(part);
    EXPECT_EQ(split.file->size(), bytes);
    for (const TensorInfo& t : whole.file->tensors()) {
      ASSERT_GE(split.file->find(t.name), 0) << t.name;
      const TensorInfo& s = split.file->tensors()[static_cast<std::size_t>(split.file->find(t.name))];
      EXPECT_EQ(s.shape, t.shape);
      ASSERT_EQ(s.bytes, t.bytes);
      EXPECT_EQ(std::memcmp(split.file->tensor_bytes(s).data(), whole.file->tensor_bytes(t).data(), t.bytes), 0)
          << t.name;
      used.insert(s.file);
    }
    EXPECT_EQ(used.size(), first_has_tensors ? 4U : 3U);
  }
}

TEST(SplitModel, DigestKnowsEveryPart) {
  const auto parts = test::split_gguf(split_tiny("digest"), scratch("one"));
  const auto others = test::split_gguf(split_tiny("other", {.seed = 2}), scratch("two"));
  const std::string digest = load_model(parts[0]).digest;
  EXPECT_EQ(load_model(parts[0]).digest, digest);
  fs::copy_file(others[2], parts[2], fs::copy_options::overwrite_existing);  // nothing in the headers tells them apart
  EXPECT_NE(load_model(parts[0]).digest, digest);
}

TEST(SplitModel, WantsTheFirstPart) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("split"));
  expect_words(parts[1], {"split-00002-of-00003.gguf is part 2 of 3", "first part", "-00001-of-00003.gguf"});
}

TEST(SplitModel, WantsEveryPart) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("gap"));
  fs::remove(parts[1]);
  expect_words(parts[0], {"part 2 of 3", "missing", "gap-00002-of-00003.gguf"});
}

TEST(SplitModel, FindsPartsByTheirNamesOnly) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("split"));
  fs::rename(parts[0], scratch("renamed.gguf"));
  expect_words(scratch("renamed.gguf").string(), {"renamed.gguf", "first of 3 parts", "-00001-of-00003.gguf"});
}

TEST(SplitModel, PartsWithWrongNumbersAreErrors) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("mixed_up"));
  fs::copy_file(parts[2], parts[1], fs::copy_options::overwrite_existing);
  expect_words(parts[0], {"mixed_up-00002-of-00003.gguf is part 3 of 3", "part 2 of 3 is needed"});
  const auto halves = test::split_gguf(split_tiny("whole"), scratch("halves"), {.parts = 2});
  fs::copy_file(halves[1], parts[1], fs::copy_options::overwrite_existing);
  expect_words(parts[0], {"part 2 of 2", "part 2 of 3 is needed"});
  fs::copy_file(split_tiny("whole"), parts[1], fs::copy_options::overwrite_existing);
  expect_words(parts[0], {"part 1 of 1", "part 2 of 3 is needed"});
}

TEST(SplitModel, PartsOfAnotherModelAreErrors) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("split"));
  const auto large = test::split_gguf(split_tiny("large", {.n_layer = 3}), scratch("large"));
  const auto wide = test::split_gguf(split_tiny("wide", {.n_embd = 32, .n_ff = 64}), scratch("wide"));
  const auto shifted =
      test::split_gguf(split_tiny("whole"), scratch("shifted"), {.parts = 3, .first_has_tensors = false});
  const auto with = [&](int part, const std::string& other) {
    test::split_gguf(split_tiny("whole"), scratch("split"));
    fs::copy_file(other, parts[static_cast<std::size_t>(part)], fs::copy_options::overwrite_existing);
  };
  with(1, large[1]);
  expect_words(parts[0], {"split-00002-of-00003.gguf is a part of another model"});
  with(1, wide[1]);
  expect_words(parts[0], {"tensor blk.", "has the shape"});
  with(1, shifted[1]);
  expect_words(parts[0], {"in two of its parts"});
  with(2, shifted[2]);
  expect_words(parts[0], {"another model's?"});
}

TEST(SplitModel, NumbersThatMakeNoSenseAreNone) {
  const auto number = [](std::uint64_t n) { return std::string(reinterpret_cast<const char*>(&n), sizeof(n)); };
  const auto key = [&](const std::string& name, std::uint64_t n) {
    return number(name.size()) + name + std::string("\x0b\0\0\0", 4) + number(n);  // an int64
  };
  const std::string start = std::string("GGUF\x03\0\0\0", 8) + number(0) + number(2);
  for (const std::uint64_t n : {~0ULL >> 1, ~0ULL, 1ULL << 63}) {
    std::ofstream(scratch("mad.gguf"), std::ios::binary) << start << key("split.no", n) << key("split.count", n);
    expect_words(scratch("mad.gguf").string(), {"mad.gguf", "architecture"});
    std::ofstream(scratch("mad.gguf"), std::ios::binary) << start << key("split.no", n) << key("split.count", 3);
    expect_words(scratch("mad.gguf").string(), {"mad.gguf is the first of 3 parts, but its name"});
  }
}

TEST(SplitModel, DamageInAnyPartIsAnErrorOfThatPart) {
  const auto parts = test::split_gguf(split_tiny("whole"), scratch("cut"));
  fs::resize_file(parts[2], fs::file_size(parts[2]) - 1000);
  expect_words(parts[0], {"cut-00003-of-00003.gguf is truncated"});
  fs::resize_file(parts[1], 40);
  expect_words(parts[0], {"cut-00002-of-00003.gguf ends in the middle of its header"});
}

}  // namespace
}  // namespace coppice::model
