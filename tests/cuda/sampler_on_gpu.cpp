// The GPU's sampler against plain double precision: which tokens each filter leaves and which of them a number of the
// generator means; how often tokens are drawn; edits and counts; that a token drawn again is the same one; and the
// CPU's sampler draws it, too. Prints a line a case; exits with 1 if one fails. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>

#include "cuda/run_program.h"
#include "executor/cuda/sample_memory.h"
#include "sampling/philox.h"
#include "sampling/sampler.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using sampling::SamplerSpec;
using sampling::TokenBias;
using sampling::TokenCount;
using test::DeviceBytes;

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Request {
  std::vector<float> logits;
  SamplerSpec spec;
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

/// One launch for all. Rows of logits lie in another order than the specs.
std::vector<std::int32_t> sample(const std::vector<Request>& requests) {
  const auto n_rows = requests.size(), n_vocab = requests[0].logits.size();
  std::vector<float> logits;
  std::vector<SamplerSpec> specs;
  std::vector<std::int32_t> rows;
  for (std::size_t i = 0; i < n_rows; ++i) {
    specs.push_back(requests[i].spec);
    rows.push_back(static_cast<std::int32_t>(n_rows - 1 - i));
    logits.insert(logits.end(), requests[n_rows - 1 - i].logits.begin(), requests[n_rows - 1 - i].logits.end());
  }
  const DeviceBytes device_logits(logits);
  executor::cuda::SampleMemory memory(static_cast<int>(n_rows), static_cast<int>(n_vocab));
  test::check_cuda(cudaDeviceSynchronize(), "memory");
  const char* error =
      executor::cuda::launch(memory.upload(specs, rows, device_logits.as<float>(), nullptr), test::current_gpu());
  if (error != nullptr) throw std::runtime_error(error);
  test::check_cuda(cudaDeviceSynchronize(), "sampler");
  std::vector<std::int32_t> out(n_rows);
  test::check_cuda(cudaMemcpy(out.data(), memory.drawn(), n_rows * 4, cudaMemcpyDeviceToHost), "copy");
  return out;
}

struct Candidate {
  std::int32_t token;
  double logit, weight;
};

bool allows(const std::vector<std::int32_t>& mask, std::size_t token) {
  return mask.empty() || (static_cast<std::uint32_t>(mask[token / 32]) >> (token % 32) & 1U) != 0;
}

/// What may be drawn, likeliest first (sampling/params.h's order).
std::vector<Candidate> distribution(const Request& r) {
  std::vector<double> logits(r.logits.begin(), r.logits.begin() + r.spec.n_vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!allows(r.spec.mask, i)) logits[i] = kNever;
  }
  for (const TokenBias& b : r.spec.biases) {
    double& logit = logits[static_cast<std::size_t>(b.token)];
    logit = static_cast<float>(logit) + b.bias;
  }
  for (const TokenCount& c : r.spec.counts) {
    double& logit = logits[static_cast<std::size_t>(c.token)];
    logit = logit > 0 ? logit / r.spec.repeat : logit * r.spec.repeat;
    if (c.times > 0) logit -= c.times * static_cast<double>(r.spec.frequency) + r.spec.presence;
  }
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > kNever) all.push_back({static_cast<std::int32_t>(i), logits[i], 0.0});
  }
  std::ranges::sort(all, [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  });
  if (all.empty() || r.spec.temperature < sampling::kGreedyTemperature) {
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

/// The token of the row's number: without filters in the order of ids.
std::int32_t expected_token(const Request& r) {
  std::vector<Candidate> left = distribution(r);
  if (r.spec.top_k <= 0 && r.spec.top_p == 1.0F && r.spec.min_p == 0.0F) std::ranges::sort(left, {}, &Candidate::token);
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
  r.spec.n_vocab = static_cast<std::int32_t>(n_vocab - (run.up_to(3) == 1 ? n_vocab / 10 : 0));
  const int filters = run.up_to(8) - 1;
  if (filters & 1) r.spec.top_k = run.up_to(run.up_to(3) == 1 ? 5000 : 60);
  if (filters & 2) r.spec.top_p = 0.05F + 0.94F * run.share();
  if (filters & 4) r.spec.min_p = run.share() * 0.3F + 1e-4F;
  if (run.up_to(4) == 1) r.spec.temperature = 0.0F;
  const auto n = static_cast<unsigned>(r.spec.n_vocab);
  if (run.up_to(2) == 1) {
    for (int i = run.up_to(20); i > 0; --i) {
      const auto token = static_cast<std::int32_t>(run.random() % n);
      if (std::ranges::find(r.spec.biases, token, &TokenBias::token) != r.spec.biases.end()) continue;
      r.spec.biases.push_back({token, run.up_to(4) == 1 ? kNever : 10.0F * run.share()});
    }
  }
  if (run.up_to(3) == 1) {
    for (std::size_t i = 0; i < (n + 31) / 32; ++i)
      r.spec.mask.push_back(static_cast<std::int32_t>(run.random() | run.random()));
  }
  if (run.up_to(2) == 1) {
    for (std::int32_t i = 0; i < r.spec.n_vocab; ++i) {
      if (run.up_to(10) == 1)
        r.spec.counts.push_back({i, static_cast<std::int32_t>(run.random() % 4), run.up_to(2) == 1});
    }
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
  const std::vector<std::int32_t> tokens = sample(requests);
  int same = 0, possible = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::vector<Candidate> left = distribution(requests[i]);
    same += tokens[i] == expected_token(requests[i]) ? 1 : 0;
    possible += std::ranges::find(left, tokens[i], &Candidate::token) != left.end() ? 1 : 0;
  }
  const bool again = sample(requests) == tokens, alone = sample({requests[7]})[0] == tokens[7];
  run.report("vocabulary of " + std::to_string(n_vocab) + ": " + std::to_string(same) + " of 40 as expected, " +
                 std::to_string(possible) + " possible" + (again && alone ? "" : ", others when drawn again"),
             same >= 39 && possible >= 39 && again && alone);
}

/// What the server's own sampler says of itself, drawn on both devices: token after token, with penalties that remember
/// them.
void check_against_cpu(std::size_t n_vocab, Run& run) {
  constexpr int kTokens = 20, kSamplers = 16;
  std::vector<sampling::Sampler> samplers;
  std::vector<std::int32_t> barred = {3, 5};
  for (int i = 0; i < kSamplers; ++i) {
    sampling::SamplingParams p;
    p.temperature = i % 5 == 0 ? 0.0F : 0.5F + run.share();
    const int filters = run.up_to(8) - 1;
    if (filters & 1) p.top_k = run.up_to(50);
    if (filters & 2) p.top_p = 0.3F + 0.69F * run.share();
    if (filters & 4) p.min_p = 0.1F * run.share();
    if (i % 3 == 1) p.repeat_penalty = 1.2F, p.frequency_penalty = 0.3F, p.presence_penalty = 0.1F;
    if (i % 4 == 2) p.logit_bias = {{7, 4.0F}, {9, -100.0F}};
    if (i % 7 == 3) {
      for (std::int32_t t = 0; t < static_cast<std::int32_t>(n_vocab); t += 3) p.allowed_tokens.push_back(t);
    }
    samplers.emplace_back(std::make_shared<sampling::SamplingParams>(p), run.random(),
                          std::make_shared<sampling::PromptTokens>(sampling::PromptTokens{1, 7, 20, 21}), barred,
                          static_cast<std::int32_t>(n_vocab - 3));
  }
  int same = 0;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<Request> requests;
    for (const sampling::Sampler& s : samplers) {
      requests.push_back({.spec = s.spec()});
      std::normal_distribution<float> normal(0.0F, 2.0F);
      for (std::size_t i = 0; i < n_vocab; ++i) requests.back().logits.push_back(normal(run.random));
    }
    const std::vector<std::int32_t> tokens = sample(requests);
    for (std::size_t i = 0; i < samplers.size(); ++i) same += samplers[i].pick(requests[i].logits) == tokens[i] ? 1 : 0;
  }
  run.report("vocabulary of " + std::to_string(n_vocab) + ": " + std::to_string(same) + " of " +
                 std::to_string(kTokens * kSamplers) + " as on the CPU",
             same >= kTokens * kSamplers - 3);
}

/// How often each is drawn must fit (chi squared, 0.1 %).
void check_frequencies(Run& run) {
  constexpr int kDraws = 20000, kAtOnce = 500;
  Request r = {.logits = std::vector<float>(3000, -40.0F), .spec = {.n_vocab = 3000}};
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
  std::vector<Request> none(1, Request{.logits = std::vector<float>(100, 1.0F), .spec = {.n_vocab = 100}});
  none[0].spec.mask.assign(4, 0);
  run.report("no token is possible", sample(none)[0] == -1);
  std::vector<Request> one = none;
  one[0].spec.mask[1] = 1 << 5;
  run.report("one is allowed", sample(one)[0] == 37);
  std::vector<Request> equal(1, Request{.logits = std::vector<float>(5000, -0.0F), .spec = {.n_vocab = 5000}});
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
    check_against_cpu(n_vocab, run);
  }
  std::printf("%d of %d failed\n", run.failed, run.n);
  return run.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main() {
  return coppice::test::run_on_each_gpu(coppice::run);
}
