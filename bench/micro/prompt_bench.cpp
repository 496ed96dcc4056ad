// How long a prompt takes before its first step, for one thread: the body's JSON, the chat template, special names,
// tokens; new, and again with some words more. Of each the least of several runs, in the thread's own time. With
// THREADS also that many chats of TOKENS at once, a thread each, which share no text: how many tokens a second all
// together make.
//
//   ninja -C build prompt_bench && build/bench/prompt_bench MODEL.gguf TEXT [TOKENS [THREADS]]
//
// TEXT: a file of prose, repeated with a number at each paragraph until there are about TOKENS (100,000).
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "text/chat_template.h"
#include "text/prompt_tokenizer.h"
#include "text/tool_chat.h"
#include "text/vocabulary.h"

namespace coppice {
namespace {

constexpr int kRuns = 5;

double milliseconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
  };
  const double begin = now();
  work();
  return now() - begin;
}

/// Turns of a long chat.
std::vector<text::ChatMessage> turns(const std::string& prose, std::size_t bytes) {
  std::vector<text::ChatMessage> chat;
  std::size_t all = 0, at = 0;
  for (int i = 0; all < bytes; ++i) {
    std::string content = fmt::format("Part {}. {}", i, prose.substr(at, 4000));
    at = (at + 4000) % prose.size();
    all += content.size();
    chat.push_back({.role = i % 2 == 0 ? "user" : "assistant", .content = std::move(content)});
  }
  return chat;
}

std::string body_of(std::span<const text::ChatMessage> chat) {
  boost::json::array messages;
  for (const auto& m : chat) messages.push_back(boost::json::object{{"role", m.role}, {"content", m.content}});
  return boost::json::serialize(boost::json::object{{"model", "m"}, {"messages", std::move(messages)}});
}

void measure(const std::shared_ptr<const text::Vocabulary>& vocabulary, const std::string& prose, std::size_t bytes) {
  const text::ChatTemplate templ(vocabulary);
  double parse = 1e9, render = 1e9, names = 1e9, cold = 1e9, warm = 1e9;
  std::size_t tokens = 0;
  for (int run = 0; run < kRuns; ++run) {
    auto chat = turns(prose, bytes);
    const std::string body = body_of(chat);
    parse = std::min(parse, milliseconds_of([&] { boost::json::parse(body); }));
    text::ToolPrompt prompt;
    render = std::min(render, milliseconds_of([&] { prompt = templ.render({.messages = chat}); }));
    const text::MarkedView marked(prompt.prompt, prompt.plain);
    names = std::min(names, milliseconds_of([&] {
                       vocabulary->tokenize(marked, true, true, text::Vocabulary::kAll,
                                            [](std::string_view, std::vector<kv::Token>&) {});
                     }));
    text::PromptTokenizer tokenizer(vocabulary, std::size_t{64} << 20);
    cold = std::min(cold, milliseconds_of([&] { tokens = tokenizer.tokenize(marked, "").size(); }));
    chat.push_back({.role = "user", .content = prose.substr(0, bytes / 100)});
    const text::ToolPrompt longer = templ.render({.messages = chat});
    warm = std::min(warm, milliseconds_of([&] { tokenizer.tokenize({longer.prompt, longer.plain}, ""); }));
  }
  fmt::print(
      "{:>8} tokens, {:>8} bytes: JSON {:6.2f} ms, template {:6.2f}, names {:6.2f}, tokens {:7.2f} ({:.2f} M/s), again "
      "with 1 % more {:6.2f}\n",
      tokens, bytes, parse, render, names, cold, static_cast<double>(tokens) / cold / 1e3, warm);
}

/// Bodies at once, each through JSON, template and tokenizer on a thread of its own, with one tokenizer for all.
void measure_at_once(const std::shared_ptr<const text::Vocabulary>& vocabulary, const std::string& prose,
                     std::size_t bytes, std::size_t n_threads) {
  const text::ChatTemplate templ(vocabulary);
  std::vector<std::vector<text::ChatMessage>> chats;
  std::vector<std::string> bodies;
  for (std::size_t i = 0; i < n_threads; ++i) {
    chats.push_back(turns(fmt::format("{} {}", i, prose.substr(i * 7919 % prose.size())), bytes));
    bodies.push_back(body_of(chats.back()));
  }
  double least = 1e9;
  std::size_t tokens = 0;
  for (int run = 0; run < kRuns; ++run) {
    text::PromptTokenizer tokenizer(vocabulary, std::size_t{64} << 20);
    std::atomic<std::size_t> sum = 0;
    const auto start = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < n_threads; ++i) {
        threads.emplace_back([&, i] {
          boost::json::parse(bodies[i]);
          const text::ToolPrompt prompt = templ.render({.messages = chats[i]});
          sum += tokenizer.tokenize({prompt.prompt, prompt.plain}, "").size();
        });
      }
    }
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    tokens = sum;
  }
  fmt::print("{} at once: {} tokens in {:.1f} ms, {:.2f} M/s\n", n_threads, tokens, 1e3 * least,
             static_cast<double>(tokens) / least / 1e6);
}

int run(std::span<char*> args) {
  if (args.size() < 3) return fmt::print("usage: prompt_bench MODEL.gguf TEXT [TOKENS [THREADS]]\n"), 2;
  std::ifstream in(args[2]);
  const std::string prose(std::istreambuf_iterator<char>(in), {});
  const auto vocabulary = std::make_shared<const text::Vocabulary>(args[1]);
  const auto tokens = static_cast<std::size_t>(args.size() > 3 ? std::atol(args[3]) : 100'000);
  for (const std::size_t n : {tokens / 50, tokens / 10, tokens}) measure(vocabulary, prose, n * 17 / 4);
  if (args.size() > 4) {
    measure_at_once(vocabulary, prose, tokens * 17 / 4, std::max<std::size_t>(1, std::strtoul(args[4], nullptr, 10)));
  }
  return 0;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::run(std::span(argv, static_cast<std::size_t>(argc)));
}
