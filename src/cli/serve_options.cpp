// A new option: here or in serve_access_options.cpp, and its field in the config of the part that heeds it; what
// follows from several options in serve.cpp; a row in docs/operations.md, which a test compares with --help. Man page
// and completions follow.
#include "cli/serve_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cli/devices.h"
#include "cli/needless_flags.h"
#include "cli/option_checks.h"
#include "cli/serve_access_options.h"
#include "server/fetch/media_hosts.h"

namespace coppice::cli {
namespace {

/// llama-server's names of devices in ours: "none", "CUDA0". Other text stays.
std::string device_of_llama_server(std::string& name) {
  if (name == "none") name = "cpu";
  if (name.starts_with("CUDA") && name.size() > 4) name = "cuda:" + name.substr(4);
  return {};
}

void add_model_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Model";
  command
      .add_option("--model,-m,model", o.model,
                  "GGUF file, a folder with one, or a local model's name; without it serve says which there are")
      ->envname("LLAMA_ARG_MODEL")
      ->group(group);
  command
      .add_option("--alias,-a,--served-model-name", o.names,
                  "Names that requests may use besides the file's; the first is what answers say; *: any name is taken")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->envname("LLAMA_ARG_ALIAS")
      ->group(group);
  command
      .add_option("--chat-template,--chat-template-file", o.chat_template,
                  "File with a Jinja template, instead of the model's own")
      ->check(template_file())
      ->envname("LLAMA_ARG_CHAT_TEMPLATE_FILE")
      ->group(group);
  command
      .add_option("--chat-template-kwargs,--default-chat-template-kwargs", o.chat_variables,
                  "Variables of the template, as a JSON object; a request's own go first")
      ->check(template_variables())
      ->envname("LLAMA_ARG_CHAT_TEMPLATE_KWARGS")
      ->group(group);
  command
      .add_option("--reasoning", o.reasoning,
                  "off: models that can answer without reasoning do so, unless a request asks for it")
      ->transform(on_and_off("on", "off"))
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->envname("LLAMA_ARG_REASONING")
      ->capture_default_str()
      ->group(group);
  command
      .add_option_function<int>(
          "--reasoning-budget",
          [&o](int tokens) {
            if (tokens == 0) o.reasoning = "off";
            if (tokens >= 0) o.server.api.defaults.thought_budget = tokens;
          },
          "Tokens that a chat's answer may think; then the end of thoughts follows. 0: also --reasoning off; -1: no "
          "limit, as it is "
          "without")
      ->check(CLI::Range(-1, std::numeric_limits<int>::max()))
      ->envname("LLAMA_ARG_THINK_BUDGET")
      ->group(group);
  command
      .add_flag("--prefill-assistant", o.continues_assistant,
                "A chat's last message goes on if it is the assistant's, unless the request says what it wants")
      ->transform(on_and_off("true", "false"))
      ->envname("LLAMA_ARG_PREFILL_ASSISTANT")
      ->group(group);
  command
      .add_flag("--special-tokens-in-content", o.names_in_content,
                "Names of special tokens in messages' contents become these tokens; without, they are text")
      ->group(group);
  command
      .add_option("--pooling", o.pooling,
                  "What an embedding is made from: the last token's hidden state, or the mean of all tokens' (default: "
                  "what the file says, else last)")
      ->check(why_not({{"cls", "the first token knows nothing of those behind it: write last or mean"},
                       {"none", "an embedding is of a whole text: write last or mean"},
                       {"rank", "no model that can be served ranks: write last or mean"}}))
      ->check(CLI::IsMember({"last", "mean"}))
      ->envname("LLAMA_ARG_POOLING")
      ->group(group);
  command
      .add_option("--ctx,-c,--ctx-size,--max-model-len", o.context,
                  "Tokens of one request, answer included (default: the model's, as far as the pool holds)")
      ->check(whole_from(2, {0}))  // one for the prompt, one for the answer
      ->envname("LLAMA_ARG_CTX_SIZE")
      ->group(group);
  command
      .add_option("--device", o.device,
                  "What computes: auto (a GPU that runs the model, else the CPU), cpu, cuda, cuda:N (an NVIDIA GPU)")
      ->transform(CLI::Validator(device_of_llama_server, ""))
      ->check(CLI::Validator(check_device, ""))
      ->envname("LLAMA_ARG_DEVICE")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--threads,-t", o.ggml.n_threads,
                  "Threads that compute (default, also by 0 and -1: one for each core that is free)")
      ->transform(read_as({{"-1", "0"}}))
      ->check(CLI::Range(0, 512))
      ->envname("LLAMA_ARG_THREADS")
      ->group(group);
  command
      .add_option("--numa", o.numa,
                  "Where memory lies if a machine has several nodes: none (as the system has it), interleave (on all)")
      ->transform(read_as({{"numactl", "none"}}))
      ->check(
          why_not({{"distribute", "threads run where the system lets them: write interleave to spread memory"},
                   {"isolate", "the system does that: write numactl --cpunodebind=0 --membind=0 before the command"}}))
      ->check(CLI::IsMember({"none", "interleave"}))
      ->envname("LLAMA_ARG_NUMA")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--attention", o.ggml.attention,
                  "auto, tree (shared blocks read once), gather (blocks copied together), dense (the reference)")
      ->check(CLI::IsMember({"auto", "tree", "gather", "dense"}))
      ->capture_default_str()
      ->group(group);
}

void add_image_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Images";
  CLI::Option* file = command
                          .add_option("--mmproj", o.mmproj,
                                      "GGUF file of the model's projector, which makes it see images (default: one "
                                      "that lies beside the model)")
                          ->check(CLI::ExistingFile)
                          ->envname("LLAMA_ARG_MMPROJ")
                          ->group(group);
  command
      .add_flag(
          "--no-mmproj,--no-mmproj-auto", [&o](std::int64_t) { o.looks_for_mmproj = false; },
          "Text only, whatever lies beside the model")
      ->excludes(file)
      ->group(group);
  command
      .add_option("--image-min-tokens", o.projector.min_rows,
                  "Tokens of an image, at least; where the model keeps its size (default: the projector's)")
      ->check(CLI::Range(1, 65536))
      ->envname("LLAMA_ARG_IMAGE_MIN_TOKENS")
      ->group(group);
  command
      .add_option("--image-max-tokens", o.projector.max_rows,
                  "Tokens of an image, at most; where the model keeps its size (default: the projector's)")
      ->check(CLI::Range(1, 65536))
      ->envname("LLAMA_ARG_IMAGE_MAX_TOKENS")
      ->group(group);
  command
      .add_option("--image-cache", o.image_cache,
                  "Memory for encoded images, which are found again in any prompt: 256MiB, bytes; 0: none is kept "
                  "(default: a sixteenth of what is free, 256MiB at least)")
      ->transform(size())
      ->check(between(0.0, 1e15))
      ->group(group);
  command.add_option("--max-images", o.most_pictures, "Most images in a request")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--allow-media-from", o.server.api.media_hosts,
                  "Hosts from which images are fetched where a request has an http or https URL: names, *.name, *, and "
                  "addresses or networks that are not public (default: nothing is fetched)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check([](const std::string& host) -> std::string {
        try {
          const server::MediaHosts hosts({host});
          return "";
        } catch (const std::invalid_argument& e) {
          return e.what();
        }
      })
      ->group(group);
  command
      .add_option("--media-timeout", o.server.api.media_seconds, "Seconds that fetching a request's images may take")
      ->check(between(0.1, 3600.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-image-pixels", o.pictures.most_pixels,
                  "Largest image, in pixels. Five are decoded at a time, each with up to 11 bytes for a pixel")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 30))
      ->capture_default_str()
      ->group(group);
}

void add_cache_options(CLI::App& command, ServeOptions& o) {
  const char* group = "Cache and scheduling";
  command
      .add_option("--kv-bytes", o.ggml.kv_bytes,
                  "Size of the KV pool: 512MiB, 2GB, bytes (default: a quarter of free memory; of a GPU's most)")
      ->transform(size())
      ->group(group);
  command
      .add_option("--kv-format", o.ggml.kv_format,
                  "How keys and values are stored: f16; int8, half of the bytes; turbo4, a quarter")
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--block-size", o.ggml.block_size, "Tokens in a block of the pool")
      ->check(CLI::IsMember({8, 16, 32, 64}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--share", o.share, "on: requests share the blocks of equal prefixes; off: each has its own")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-batch,--parallel,--max-num-seqs", o.engine.max_batch, "Sequences that run at the same time")
      ->transform(read_as({{"-1", std::to_string(o.engine.max_batch)}}))
      ->check(CLI::Range(1, 4096))
      ->envname("LLAMA_ARG_N_PARALLEL")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--step-tokens,-b,--batch-size,--max-num-batched-tokens", o.step_tokens,
                  "Most tokens computed in one step; while streams decode, prompts get half of it; default: 512, 2048 "
                  "on a GPU; "
                  "where nothing decodes 128 for each thread, 512 to 2048, as long as a step takes about 250 ms")
      ->check(CLI::Range(1, 65536))
      ->envname("LLAMA_ARG_BATCH")
      ->group(group);
  command
      .add_option(
          "--cache-report", o.cache_report,
          "What requests with \"cache_report\" are told: text, lengths (without the cached text), off; default: "
          "text, but lengths where several API keys share cached prefixes")
      ->check(CLI::IsMember({"text", "lengths", "off"}))
      ->group(group);
  command
      .add_option(
          "--pin-share", o.engine.pin_share,
          "The part of the pool that pinned prefixes may hold; less where a request of the whole context needs it; "
          "0: none is pinned")
      ->check(between(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--pin-share-of-key", o.engine.pin_share_of_key,
                  "The part of the pool that one API key's pinned prefixes may hold")
      ->check(between(0.0, 1.0))
      ->capture_default_str()
      ->group(group);
  command.add_option("--max-queue", o.engine.max_waiting, "Requests that may wait; further ones get a 429")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
  command
      .add_option_function<double>(
          "--sleep-idle-seconds",
          [&o](double seconds) {
            using std::chrono::duration_cast;
            o.engine.sleep_after =
                duration_cast<engine::Clock::duration>(std::chrono::duration<double>(std::max(seconds, 0.0)));
          },
          "Let the weights' memory go after so long without requests; the next one waits until they are read again; "
          "-1: never")
      ->check([](const std::string& text) { return text == "-1" ? std::string() : between(0.1, 1e7)(text); })
      ->envname("LLAMA_ARG_SLEEP_IDLE_SECONDS")
      ->default_str("-1")
      ->group(group);
  command
      .add_option("--check-every", o.engine.check_every, "Check the cache's integrity every so many steps; 0: never")
      ->check(not_negative())
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void add_serve_options(CLI::App& command, ServeOptions& options) {
  add_model_options(command, options);
  add_image_options(command, options);
  add_cache_options(command, options);
  add_tier_options(command, options.tier);
  add_kv_event_options(command, options.events);
  add_access_option_groups(command, options);
  add_needless_flags(command);
}

}  // namespace coppice::cli
