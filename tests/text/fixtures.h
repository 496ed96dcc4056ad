// What tests on a real model share: the vocabulary of COPPICE_MODEL, and the seed of random tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>

#include "text/vocabulary.h"

namespace coppice::test {

inline std::string model_path() {
  const char* path = std::getenv("COPPICE_MODEL");
  if (path == nullptr || *path == '\0') throw std::runtime_error("COPPICE_MODEL names no GGUF file");
  return path;
}

/// Loaded once for all tests of a program.
inline std::shared_ptr<const text::Vocabulary> vocabulary() {
  static const auto loaded = std::make_shared<const text::Vocabulary>(model_path());
  return loaded;
}

inline std::ifstream open_fixture(const std::string& name) {
  std::ifstream in(std::string(COPPICE_FIXTURES) + "/" + name);
  if (!in) throw std::runtime_error("missing fixture " + name);
  return in;
}

/// The generator of a random test: printed seed, replayed by COPPICE_SEED.
inline std::mt19937_64 seeded_random() {
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device{}();
  std::printf("COPPICE_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

inline std::size_t pick_below(std::mt19937_64& random, std::size_t n) {
  return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
}

}  // namespace coppice::test
