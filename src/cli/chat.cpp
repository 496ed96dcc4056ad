#include "cli/chat.h"

#include <fmt/color.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/child_server.h"
#include "cli/http_client.h"
#include "cli/local_models.h"
#include "cli/which_model.h"

namespace coppice::cli {

namespace {

namespace json = boost::json;
using Clock = std::chrono::steady_clock;

std::atomic<bool> interrupted = false;  // by Ctrl-C

struct Stopped {};  ///< the answer in hand was

constexpr std::string_view kHelp =
    "  /new          begin anew\n"
    "  /back         take the last message back; what comes next is a branch\n"
    "  /again        another answer to the last message\n"
    "  /system TEXT  the system prompt from now on\n"
    "  /quit         end, as Ctrl-D\n"
    "  Ctrl-C ends an answer.\n";

struct ChatOptions {
  std::string where;
  std::string system;
  std::string kv_bytes;
  std::string key;
  std::optional<double> temperature;
  int max_tokens = 1024;
};

/// A text for a terminal: without the control characters by which it could move the cursor, or tell the terminal to
/// type.
std::string harmless(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool two =
        c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;  // U+0080 to U+009F
    if (two) ++i;
    if (two || c == 0x7F || (c < 0x20 && c != '\n' && c != '\t')) {
      shown += "\uFFFD";
    } else {
      shown += text[i];
    }
  }
  return shown;
}

class Chat {
 public:
  Chat(ChatOptions options, std::uint16_t port)
      : options_(std::move(options)), port_(port), terminal_(::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO)) {}

  void run() {
    if (terminal_) fmt::print("/help tells what else there is than to ask.\n");
    for (std::string line; read(line);) {
      if (line.empty()) continue;
      if (line == "/quit") return;
      try {
        obey(line);
      } catch (const std::exception& e) {
        fmt::print(stderr, "{}\n", e.what());
      }
    }
    if (terminal_) fmt::print("\n");
  }

 private:
  bool read(std::string& line) {
    if (terminal_) fmt::print("\n> ");
    std::fflush(stdout);
    interrupted = false;
    return static_cast<bool>(std::getline(std::cin, line));  // Ctrl-C at the prompt ends it, too
  }

  void obey(const std::string& line) {
    if (line == "/help") {
      fmt::print("{}", kHelp);
    } else if (line == "/new") {
      messages_.clear();
    } else if (line == "/back") {
      if (messages_.size() >= 2) messages_.resize(messages_.size() - 2);
      fmt::print("{} messages are left.\n", messages_.size());
    } else if (line == "/again") {
      if (messages_.empty()) throw std::runtime_error("There is no message yet.");
      messages_.pop_back();
      answer();
    } else if (line.starts_with("/system")) {
      options_.system = line.substr(std::min(line.size(), std::string_view("/system ").size()));
    } else if (line.starts_with('/')) {
      throw std::runtime_error("There is no such command; /help lists them.");
    } else {
      messages_.emplace_back("user", line);
      answer();
    }
  }

  std::string body() const {
    json::array messages;
    const auto add = [&](std::string_view role, std::string_view content) {
      messages.push_back(json::object{{"role", role}, {"content", content}});
    };
    if (!options_.system.empty()) add("system", options_.system);
    for (const auto& [role, content] : messages_) add(role, content);
    json::object body = {{"messages", std::move(messages)},
                         {"max_tokens", options_.max_tokens},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}}};
    if (options_.temperature) body["temperature"] = *options_.temperature;
    return json::serialize(body);
  }

  /// Streams the answer to the last message. A message without an answer is taken back.
  void answer() {
    Answer answer;
    try {
      const HttpReply reply = http_post(
          port_, "/v1/chat/completions", body(),
          [&](std::string_view stream) {
            if (interrupted) throw Stopped{};
            take(stream, answer);
          },
          options_.key);
      if (reply.status != 200) throw std::runtime_error(error_of(reply));
      if (!answer.error.empty()) throw std::runtime_error(answer.error);
    } catch (const Stopped&) {
    } catch (...) {
      messages_.pop_back();
      throw;
    }
    fmt::print("\n");
    messages_.emplace_back("assistant", std::move(answer.text));
    if (answer.prompt_tokens > 0)
      say(fmt::format("{} of {} prompt tokens from the cache, first token after {:.2f} s\n", answer.cached_tokens,
                      answer.prompt_tokens, answer.first_token));
  }

  struct Answer {
    Clock::time_point start = Clock::now();
    std::size_t at = 0;     ///< of the stream, what was read
    bool thinking = false;  ///< what was shown last is what the model thinks
    std::string text, error;
    double first_token = 0;
    std::int64_t prompt_tokens = 0, cached_tokens = 0;
  };

  /// The stream's whole lines that are new.
  void take(std::string_view stream, Answer& answer) const {
    for (std::size_t end = 0; (end = stream.find('\n', answer.at)) != std::string_view::npos; answer.at = end + 1) {
      const std::string_view line = stream.substr(answer.at, end - answer.at);
      if (!line.starts_with("data: {")) continue;
      const json::value event = json::parse(line.substr(6));
      json::error_code none;
      for (const char* part : {"/choices/0/delta/reasoning_content", "/choices/0/delta/content"}) {
        const auto* text = event.find_pointer(part, none);
        if (text != nullptr && text->is_string())
          show(text->get_string(), !std::string_view(part).ends_with("/content"), answer);
      }
      if (const auto* error = event.find_pointer("/error/message", none); error && error->is_string())
        answer.error = error->get_string();
      if (const auto* tokens = event.find_pointer("/usage/prompt_tokens", none); tokens && tokens->is_number()) {
        answer.prompt_tokens = tokens->to_number<std::int64_t>();
        const auto* cached = event.find_pointer("/usage/prompt_tokens_details/cached_tokens", none);
        if (cached != nullptr) answer.cached_tokens = cached->to_number<std::int64_t>();
      }
    }
  }

  /// Thoughts are for a terminal only, where they look different.
  void show(std::string_view text, bool thought, Answer& answer) const {
    if (text.empty()) return;
    if (answer.first_token == 0)
      answer.first_token = std::chrono::duration<double>(Clock::now() - answer.start).count();
    if (thought) {
      say(harmless(text));
    } else {
      if (answer.thinking && terminal_) fmt::print("\n\n");
      answer.text += text;
      fmt::print("{}", terminal_ ? harmless(text) : std::string(text));
    }
    answer.thinking = thought;
    std::fflush(stdout);
  }

  static std::string error_of(const HttpReply& reply) {
    json::error_code none;
    const json::value told = json::parse(reply.body, none);
    if (reply.status == 401) return "The server wants a key: --api-key, or LLAMA_API_KEY.";
    const auto* message = told.find_pointer("/error/message", none);
    if (message != nullptr && message->is_string()) return std::string(message->get_string());
    return fmt::format("The server says {}.", reply.status);
  }

  void say(std::string_view text) const {
    if (terminal_) fmt::print(fmt::emphasis::faint, "{}", text);
  }

  ChatOptions options_;
  std::uint16_t port_;
  bool terminal_;
  std::vector<std::pair<std::string, std::string>> messages_;  ///< role and content
};

/// The port of a server on this machine: "8080" or "http://127.0.0.1:8080"; nothing: it names a model.
std::optional<std::uint16_t> port_of(std::string where) {
  for (const std::string_view prefix : {"http://127.0.0.1:", "http://localhost:", "127.0.0.1:", "localhost:"}) {
    if (where.starts_with(prefix)) where.erase(0, prefix.size());
  }
  std::uint16_t port = 0;
  if (!where.empty() && where.back() == '/') where.pop_back();
  return CLI::detail::lexical_cast(where, port) && port > 0 ? std::optional(port) : std::nullopt;
}

/// On a terminal only: a line that is written anew.
void show_load(const std::string& stage, double fraction) {
  if (::isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\033[K{}, {:.0f} %", stage, fraction * 100);
  std::fflush(stderr);
}

int chat(const ChatOptions& options) {
  struct sigaction action{};
  action.sa_handler = [](int) { interrupted = true; };
  ::sigaction(SIGINT, &action, nullptr);  // without SA_RESTART: at the prompt it ends the reading
  std::signal(SIGPIPE, SIG_IGN);
  if (const auto port = port_of(options.where)) {
    if (http_get(*port, "/health").status != 200)
      throw std::runtime_error(
          fmt::format("No coppice is ready at http://127.0.0.1:{}; 'coppice chat MODEL' starts one. {}", *port,
                      models_to_choose()));
    Chat(options, *port).run();
    return 0;
  }
  const LocalModel model = find_model(options.where);
  const auto log = std::filesystem::temp_directory_path() / fmt::format("coppice-chat-{}.log", ::getpid());
  fmt::print(stderr, "loading {}\n", model.path.string());
  // As it was named: a file of a cache may not say what its name does, such as which projector belongs to it.
  std::vector<std::string> arguments = {"--model", options.where};
  if (!options.kv_bytes.empty()) arguments.insert(arguments.end(), {"--kv-bytes", options.kv_bytes});
  const ChildServer server(std::move(arguments), log, show_load);
  fmt::print(stderr, "{}its page: http://127.0.0.1:{}/\n", ::isatty(STDERR_FILENO) != 0 ? "\r\033[K" : "",
             server.port());
  Chat(options, server.port()).run();
  std::error_code ignored;
  std::filesystem::remove(log, ignored);
  return 0;
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<ChatOptions>();
  options->where = "8080";
  CLI::App* command = app.add_subcommand("chat", "Talk to a model in the terminal");
  command
      ->add_option("where", options->where,
                   "A server's port on this machine or its http://127.0.0.1:PORT; or a model, as for serve: then a "
                   "server runs as long as the chat")
      ->capture_default_str();
  command->add_option("--system", options->system, "System prompt");
  command->add_option("--temp", options->temperature, "Temperature (default: the server's)")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--n-predict,-n", options->max_tokens, "Most tokens of an answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--api-key", options->key, "Of the server, where it wants one")->envname("LLAMA_API_KEY");
  command->add_option("--kv-bytes", options->kv_bytes,
                      "Of the server that is started: size of the KV pool, such as 512MiB");
  command->callback([options, &exit_code] { exit_code = chat(*options); });
}

}  // namespace coppice::cli
