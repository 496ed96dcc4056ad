// The KV bytes that `coppice bench` reports of the backend dense, on a tiny random model.
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "executor/ggml/ggml_executor.h"
#include "support/executor_rig.h"
#include "support/gguf_writer.h"

namespace coppice {
namespace {

struct Bytes {
  std::uint64_t read = 0;   ///< for a step of 40 rows
  std::uint64_t token = 0;  ///< of the pool
};

Bytes dense_bytes(const std::string& format) {
  const auto path = test::scratch_folder() / "dense_bytes.gguf";
  test::write_tiny_model({}, path);
  executor::GgmlOptions options;
  options.model_path = path.string();
  options.attention = "dense";
  options.kv_format = format;
  options.kv_bytes = std::size_t{4} << 20;
  options.n_threads = 1;
  const auto executor = executor::load_ggml_executor(options, {});
  test::ExecutorRig rig(*executor, 7);
  test::RigSequence sequence;
  std::vector<kv::Token> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 1);
  rig.feed(sequence, tokens, 64, test::Want::kAll);
  return {executor->kv_traffic().bytes_read, executor->info().groups.at(0).bytes_per_token};
}

TEST(DenseBytes, ThePoolsAreOfTheFormatAndTheCopiesAreNot) {
  const Bytes f16 = dense_bytes("f16");
  // Keys, values, and the values turned over: a row of f32 is as large as two of f16.
  const std::uint64_t copies = 3 * f16.token;
  const std::uint64_t keys = f16.read / (f16.token + copies);
  EXPECT_GE(keys, 40U);
  EXPECT_EQ(f16.read, keys * (f16.token + copies));
  for (const char* format : {"int8", "turbo4"}) {
    const Bytes bytes = dense_bytes(format);
    EXPECT_LT(bytes.token, f16.token) << format;
    EXPECT_EQ(bytes.read, keys * (bytes.token + copies)) << format;
  }
}

}  // namespace
}  // namespace coppice
