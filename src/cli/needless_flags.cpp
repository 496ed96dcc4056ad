#include "cli/needless_flags.h"

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/option_checks.h"

namespace coppice::cli {

void add_needless_flags(CLI::App& command) {
  const std::string why = "Taken, and without effect: so it is here anyway";
  command
      .add_flag(
          "--jinja,--embedding,--embeddings,--cont-batching,--kv-unified,--metrics,--slots,--no-prefill-assistant,--"
          "cache-prompt,--ui,--webui,"
          "--offline,--no-context-shift,--perf,--no-perf,--escape,--no-escape,--repack,--kv-offload,--mmproj-auto,--op-"
          "offload,"
          "--no-skip-chat-parsing,--no-agent,--no-log-jsonl,--cache-idle-slots,--no-ui-mcp-proxy,--no-webui-mcp-proxy,-"
          "-mmap,--no-mmap,--warmup,--no-warmup,--log-prefix,--log-timestamps,"
          "--enable-prefix-caching,--enable-chunked-prefill,--enable-auto-tool-choice,--enable-prompt-tokens-details,"
          "--trust-remote-code,--enforce-eager,--async-scheduling,--disable-log-requests,--no-enable-log-requests,"
          "--disable-uvicorn-access-log,--disable-log-stats",
          why)
      ->group(kNeedlessGroup);
  const auto take = [&command](const char* names, const char* text) {
    return command.add_option_function<std::vector<std::string>>(
                      names, [](const std::vector<std::string>&) {}, text)
        ->take_all()  // by each of its names
        ->allow_extra_args(false)
        ->type_name("TEXT")
        ->group(kNeedlessGroup);
  };
  take("--tool-call-parser,--reasoning-parser",
       "Taken, and without effect: the chat template says how calls and thoughts look");
  take("--reasoning-format", "Taken, and without effect: thoughts are kept apart unless a request says none")
      ->check(why_not({{"none", "a request's reasoning_format none leaves thoughts in the text; leave the option out"},
                       {"deepseek-legacy", "thoughts stand in reasoning_content alone: write deepseek"}}))
      ->check(CLI::IsMember({"auto", "deepseek"}))
      ->envname("LLAMA_ARG_THINK");
  take("--flash-attn", "Taken, and without effect: attention is always computed so")
      ->transform(on_and_off("on", "off"))
      ->check(why_not({{"off", "attention is always computed so: leave the option out, or write auto"}}))
      ->check(CLI::IsMember({"auto", "on"}))
      ->envname("LLAMA_ARG_FLASH_ATTN");
  take("--tensor-parallel-size,--pipeline-parallel-size,--data-parallel-size", "One device computes")
      ->check(only("1", "one device computes: write 1, and start a server for each GPU with --device cuda:0, cuda:1"));
  take("--dtype", "Taken, and without effect: the file says how weights are stored; see --kv-format")
      ->check(only("auto", "the file says how weights are stored: write auto; --kv-format is for keys and values"));
}

}  // namespace coppice::cli
