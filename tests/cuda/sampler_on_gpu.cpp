// The GPU's sampler against plain double precision: which tokens each filter leaves and which of them a number of the generator means;
// how often tokens are drawn; edits and counts; that a token drawn again is the same one. Prints a line a case; exits with 1 if one
// fails. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>

#include "executor/cuda/sampler.h"
#include "sampling/philox.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using executor::cuda::kInPrompt;
using executor::cuda::SamplerSpec;
using executor::cuda::TokenBias;
using test::DeviceBytes;

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Request {
  std::vector<float> logits;
  SamplerSpec spec;
  std::vector<TokenBias> biases;
  std::vector<bool> allowed;          ///< empty: all
  std::vector<std::uint32_t> counts;  ///< empty: none
};

struct Run {
  std::mt19937 random;
  int failed = 0, n = 0;
  explicit Run(std::uint64_t seed) : random(static_cast<std::mt19937::result_type>(seed)) {}
  int up_to(int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); }
  float share() { return std::uniform_real_distribution<float>(0.0F, 1.0F)(random); }
  void report(const std::string& what, bool ok) {
    std::printf("%-6s %s\n", ok ? "ok" : "FAILED", what.c_str());
    failed += ok ? 0 : 1;
    ++n;
  }
};

/// One launch for all; counts are updated.
std::vector<std::int32_t> sample(std::vector<Request>& requests) {
  const auto n_rows = requests.size(), n_vocab = requests[0].logits.size(), words = (n_vocab + 31) / 32;
  std::vector<float> logits;
  std::vector<SamplerSpec> specs;
  std::vector<TokenBias> biases = {{}};
  std::vector<std::uint32_t> masks = {0}, counts = {0};
  masks.clear();
  counts.clear();
  for (Request& r : requests) {
    logits.insert(logits.end(), r.logits.begin(), r.logits.end());
    r.spec.first_bias = static_cast<std::int32_t>(biases.size());
    r.spec.n_biases = static_cast<std::int32_t>(r.biases.size());
    biases.insert(biases.end(), r.biases.begin(), r.biases.end());
    r.spec.mask = r.allowed.empty() ? -1 : static_cast<std::int32_t>(masks.size() / words);
    if (!r.allowed.empty()) {
      std::vector<std::uint32_t> mask(words);
      for (std::size_t i = 0; i < n_vocab; ++i) mask[i / 32] |= (r.allowed[i] ? 1U : 0U) << (i % 32);
      masks.insert(masks.end(), mask.begin(), mask.end());
    }
    r.spec.counts = r.counts.empty() ? -1 : static_cast<std::int32_t>(counts.size() / n_vocab);
    counts.insert(counts.end(), r.counts.begin(), r.counts.end());
    specs.push_back(r.spec);
  }
  masks.push_back(0);
  counts.push_back(0);
  const DeviceBytes d_logits(logits), d_specs(specs), d_biases(biases), d_masks(masks), d_counts(counts),
      edited(logits.size() * 4), tokens(n_rows * 4),
      candidates(n_rows * executor::cuda::candidate_room(static_cast<int>(n_vocab)) * 8);
  const char* error = executor::cuda::launch(
      executor::cuda::SampleRows{static_cast<int>(n_rows), static_cast<int>(n_vocab), d_logits.as<float>(),
                                 d_specs.as<SamplerSpec>(), d_biases.as<TokenBias>(), d_masks.as<std::uint32_t>(),
                                 d_counts.as<std::uint32_t>(), edited.as<float>(), candidates.as<std::uint64_t>(),
                                 tokens.as<std::int32_t>()},
      nullptr);
  if (error != nullptr) throw std::runtime_error(error);
  test::check_cuda(cudaDeviceSynchronize(), "sampler");
  std::vector<std::int32_t> out(n_rows);
  test::check_cuda(cudaMemcpy(out.data(), tokens.as<void>(), n_rows * 4, cudaMemcpyDeviceToHost), "copy");
  test::check_cuda(cudaMemcpy(counts.data(), d_counts.as<void>(), counts.size() * 4, cudaMemcpyDeviceToHost), "copy");
  std::size_t at = 0;
  for (Request& r : requests) {
    std::copy_n(counts.begin() + static_cast<std::ptrdiff_t>(at), r.counts.size(), r.counts.begin());
    at += r.counts.size();
  }
  return out;
}

struct Candidate {
  std::int32_t token;
  double logit, weight;
};

/// What may be drawn, likeliest first (sampling/params.h's order).
std::vector<Candidate> distribution(const Request& r) {
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < r.logits.size(); ++i) {
    double logit = r.allowed.empty() || r.allowed[i] ? r.logits[i] : kNever;
    for (const TokenBias& b : r.biases) {
      if (b.token == static_cast<std::int32_t>(i)) logit = static_cast<float>(logit) + b.bias;
    }
    if (const std::uint32_t count = r.counts.empty() ? 0 : r.counts[i]; count != 0) {
      logit = logit > 0 ? logit / r.spec.repeat : logit * r.spec.repeat;
      const std::uint32_t times = count & ~kInPrompt;
      if (times > 0) logit -= times * static_cast<double>(r.spec.frequency) + r.spec.presence;
    }
    if (logit > kNever) all.push_back({static_cast<std::int32_t>(i), logit, 0.0});
  }
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  if (all.empty() || r.spec.temperature < executor::cuda::kGreedy) {
    all.resize(std::min<std::size_t>(all.size(), 1));
    return all;
  }
  const double highest = all.front().logit;
  for (Candidate& c : all) c.weight = std::exp((c.logit - highest) / r.spec.temperature);
  if (r.spec.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(r.spec.top_k)));
  if (r.spec.top_p < 1.0F) {
    double total = 0.0, sum = 0.0;
    for (const Candidate& c : all) total += c.weight;
    std::size_t n = 0;
    while (n < all.size() && sum < r.spec.top_p * total) sum += all[n++].weight;
    all.resize(n);
  }
  std::erase_if(all, [&](const Candidate& c) { return c.weight < r.spec.min_p; });
  return all;
}

/// The token of the row's number in a filtered list.
std::int32_t expected_token(const Request& r) {
  const std::vector<Candidate> left = distribution(r);
  if (left.empty()) return -1;
  double total = 0.0, sum = 0.0;
  for (const Candidate& c : left) total += c.weight;
  const double drawn = std::ldexp(static_cast<double>(sampling::philox_64(r.spec.seed, r.spec.counter)), -64) * total;
  for (const Candidate& c : left) {
    sum += c.weight;
    if (drawn < sum) return c.token;
  }
  return left.back().token;
}

Request random_request(std::size_t n_vocab, Run& run) {
  Request r;
  std::normal_distribution<float> normal(0.0F, 0.5F + 4.0F * run.share());
  for (std::size_t i = 0; i < n_vocab; ++i) r.logits.push_back(normal(run.random));
  if (run.up_to(3) == 1) {  // equal ones
    for (float& logit : r.logits) logit = std::nearbyint(logit);
  }
  r.spec.temperature = 0.3F + 1.2F * run.share();
  r.spec.seed = run.random() | std::uint64_t{run.random()} << 32;
  r.spec.counter = run.random();
  const int filters = run.up_to(7);
  if (filters & 1) r.spec.top_k = run.up_to(run.up_to(3) == 1 ? 5000 : 60);
  if (filters & 2) r.spec.top_p = 0.05F + 0.94F * run.share();
  if (filters & 4) r.spec.min_p = run.share() * 0.3F + 1e-4F;
  if (run.up_to(4) == 1) r.spec.temperature = 0.0F;
  if (run.up_to(2) == 1) {
    for (int i = run.up_to(20); i > 0; --i) {
      const auto token = static_cast<std::int32_t>(run.random() % n_vocab);
      if (std::ranges::find(r.biases, token, &TokenBias::token) != r.biases.end()) continue;
      r.biases.push_back({token, run.up_to(4) == 1 ? kNever : 10.0F * run.share()});
    }
  }
  if (run.up_to(3) == 1) {
    for (std::size_t i = 0; i < n_vocab; ++i) r.allowed.push_back(run.up_to(3) != 1);
  }
  if (run.up_to(2) == 1) {
    for (std::size_t i = 0; i < n_vocab; ++i)
      r.counts.push_back(run.up_to(10) == 1 ? (run.random() % 2) * kInPrompt + run.random() % 4 : 0);
    r.spec.repeat = 1.0F + run.share();
    r.spec.frequency = run.share();
    r.spec.presence = run.share();
  }
  return r;
}

/// Sums in floats and in doubles meet a border on two sides now and then.
void check_filters(std::size_t n_vocab, Run& run) {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(random_request(n_vocab, run));
  const std::vector<Request> before = requests;
  const std::vector<std::int32_t> tokens = sample(requests);
  int same = 0, possible = 0, counted = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<Candidate> left = distribution(before[i]);
    same += tokens[i] == expected_token(before[i]) ? 1 : 0;
    possible += std::ranges::find(left, tokens[i], &Candidate::token) != left.end() ? 1 : 0;
    std::vector<std::uint32_t> counts = before[i].counts;
    if (!counts.empty()) ++counts[static_cast<std::size_t>(tokens[i])];
    counted += counts == requests[i].counts ? 1 : 0;
  }
  requests = before;
  const bool again = sample(requests) == tokens;
  std::vector<Request> alone = {before[7]};
  const bool alone_too = sample(alone)[0] == tokens[7];
  run.report("vocabulary of " + std::to_string(n_vocab) + ": " + std::to_string(same) + " of 40 as expected, " +
                 std::to_string(possible) + " possible, " + std::to_string(counted) + " counted" +
                 (again && alone_too ? "" : ", others when drawn again"),
             same >= 39 && possible >= 39 && counted == 40 && again && alone_too);
}

/// Without filters the order of the tokens is the kernel's own: how often each is drawn must fit (chi squared, 0.1 %).
void check_frequencies(Run& run) {
  constexpr int kDraws = 20000, kAtOnce = 500;
  Request r = {.logits = std::vector<float>(3000, -40.0F)};
  for (std::size_t i = 0; i < 12; ++i) r.logits[i * 250 + 7] = 3.0F * run.share();
  r.spec.temperature = 0.8F;
  r.spec.seed = run.random();
  std::vector<int> drawn(r.logits.size());
  for (int i = 0; i < kDraws; i += kAtOnce) {
    std::vector<Request> requests;
    for (int k = 0; k < kAtOnce; ++k) {
      requests.push_back(r);
      requests.back().spec.counter = static_cast<std::uint64_t>(i + k);
    }
    for (const std::int32_t token : sample(requests)) ++drawn[static_cast<std::size_t>(token)];
  }
  double total = 0.0, chi = 0.0;
  const std::vector<Candidate> all = distribution(r);
  for (const Candidate& c : all) total += c.weight;
  int others = kDraws;
  for (std::size_t i = 0; i < 12; ++i) {
    const double expected = kDraws * all[i].weight / total;
    const int n = drawn[static_cast<std::size_t>(all[i].token)];
    chi += (n - expected) * (n - expected) / expected;
    others -= n;
  }
  run.report("frequencies of twelve tokens: chi squared " + std::to_string(chi), chi < 31.3 && others == 0);
}

void check_edges(Run& run) {
  std::vector<Request> none(1, Request{.logits = std::vector<float>(100, 1.0F)});
  none[0].allowed.assign(100, false);
  run.report("no token is possible", sample(none)[0] == -1);
  std::vector<Request> one = none;
  one[0].allowed[37] = true;
  run.report("one is allowed", sample(one)[0] == 37);
  std::vector<Request> equal(1, Request{.logits = std::vector<float>(5000, -0.0F)});
  equal[0].logits[4000] = 0.0F;
  equal[0].spec.temperature = 0.0F;
  run.report("of equals the lowest id", sample(equal)[0] == 0);
  equal[0].spec.temperature = 1.0F;
  equal[0].spec.top_k = 1;
  run.report("of equals the lowest id, top-k 1", sample(equal)[0] == 0);
  // The paper's own check (Random123's kat_vectors).
  const sampling::Philox x = sampling::philox(0, 0);
  run.report("Philox", x.words[0] == 0x6627e8d5 && x.words[1] == 0xe169c58d && x.words[2] == 0xbc57ac4c &&
                           x.words[3] == 0x9b00dbd8);
}

int run() {
  Run run(test::test_seed());
  check_edges(run);
  check_frequencies(run);
  for (const std::size_t n_vocab : {33U, 1000U, 1024U, 32000U, 128256U}) {
    for (int i = 0; i < 3; ++i) check_filters(n_vocab, run);
  }
  std::printf("%d of %d failed\n", run.failed, run.n);
  return run.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main() {
  try {
    return coppice::run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
