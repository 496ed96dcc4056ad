// What products of quantised files are measured by: libllama on a copy with the same weights in f32, whose rows nobody
// rounds. Libllama's product of the file itself rounds rows to 8 bits, ours on AMX to bf16. So how far these two are
// from each other is the sum of both roundings, and not what either does wrong.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "support/executor_rig.h"
#include "support/gguf_writer.h"
#include "support/libllama.h"

namespace coppice::test {

/// Over all rows.
inline double mean_relative_rms(std::span<const Row> rows, std::span<const Row> expected) {
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) sum += relative_rms(rows[i], expected[i]);
  return sum / static_cast<double>(rows.size());
}

/// Logits of all tokens of a file may be as far from those of exact products as libllama's own are, and half as much
/// again. Of ours, over libllama's: 0.97 to 1.08 without AMX (gpt_oss 1.41), 0.37 to 0.67 with it (gpt_oss 1.06). These
/// are 0.007 to 0.13; a wrong part is about 1.
inline void expect_no_worse_than_libllama(const std::string& name, const std::string& path,
                                          std::span<const kv::Token> tokens, std::span<const Row> rows) {
  const int n = static_cast<int>(tokens.size());
  const std::string copy = (scratch_folder() / "exact.gguf").string();
  dequantize_gguf(path, copy);
  const std::vector<Row> exact = Libllama(copy, false, 1).feed(tokens, n);
  ASSERT_EQ(rows.size(), exact.size());
  const double theirs = mean_relative_rms(Libllama(path, false, 1).feed(tokens, n), exact);
  const double ours = mean_relative_rms(rows, exact);
  fmt::print("{}: {:.2g}, libllama {:.2g}\n", name, ours, theirs);
  EXPECT_LT(ours, 1.5 * theirs) << name;
}

}  // namespace coppice::test
