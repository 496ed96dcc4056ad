#include "cli/other_servers.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <string_view>

namespace coppice::cli {
namespace {

struct Short {
  std::string_view name, same;
};
constexpr Short kShort[] = {{"-np", "--parallel"},   {"-fa", "--flash-attn"},    {"-rea", "--reasoning"},
                            {"-mm", "--mmproj"},     {"-cb", "--cont-batching"}, {"-tp", "--tensor-parallel-size"},
                            {"-kvu", "--kv-unified"}};

struct Otherwise {
  std::string_view names, here;  ///< names: with a space before and behind each
};
constexpr Otherwise kOtherwise[] = {
    {" -ngl --gpu-layers --n-gpu-layers -cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor ",
     "--device chooses what computes, and a GPU gets all layers"},
    {" -dev -sm --split-mode -ts --tensor-split -mg --main-gpu ", "--device chooses what computes: one device"},
    {" -ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype ", "--kv-format chooses f16, int8 or turbo4 for both"},
    {" -ub --ubatch-size ", "--step-tokens alone bounds a step"},
    {" -tb --threads-batch ", "--threads holds for prompts, too"},
    {" -cram --cache-ram --gpu-memory-utilization --kv-cache-memory-bytes --swap-space --num-gpu-blocks-override ",
     "--kv-bytes is the size of the KV pool"},
    {" -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --download-dir ",
     "nothing is downloaded: --model takes a file or a local model's name, and 'coppice models' lists these"},
    {" --no-cache-prompt --no-enable-prefix-caching ", "--share off, or a request's cache_prompt false"},
    {" --allowed-origins ", "--cors takes the origins, separated by commas"},
    {" -to --timeout ", "--request-seconds, --idle-seconds and --write-seconds"},
    {" --no-jinja --skip-chat-parsing ", "chat templates are always read as Jinja"},
    {" --no-metrics ", "/metrics is always there; --api-keys guards it"},
    {" --mlock ", "weights are not locked in memory; without swap they stay there"},
    {" --log-disable -lv --verbosity --log-verbosity --uvicorn-log-level ", "--log-level says what is logged"},
    {" --ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile ", "use a proxy with TLS"},
    {" --api-prefix --root-path ", "use a proxy that cuts the prefix off"},
    {" --lora --lora-scaled --enable-lora --lora-modules ", "there are no adapters: merge them into the file"},
    {" -md --model-draft --draft --draft-n --draft-max --draft-min --spec-draft-model --spec-type "
     "--speculative-config ",
     "there are no draft models"},
    {" -mmu --mmproj-url ", "nothing is downloaded: --mmproj takes a file"},
    {" -mmdev --mmproj-device --no-mmproj-offload ", "the CPU encodes images"},
    {" --rerank --reranking ", "no model that can be served ranks"},
    {" --models-dir --models-preset ", "a process serves one model"},
    {" --context-shift ", "a text over the context is refused or cut, never shifted"},
    {" --slot-save-path ", "there are no files of slots: equal prefixes are found in the cache"},
    {" -sps --slot-prompt-similarity --cache-reuse ", "equal prefixes are found in the cache, whoever computed them"},
    {" --samplers --sampling-seq --mirostat --typical --xtc-probability --dry-multiplier --dynatemp-range ",
     "this sampler is not built; docs/api.md lists those that are"},
    {" --repeat-last-n ", "penalties count all of a text"},
    {" --grammar --grammar-file -j --json-schema -jf --json-schema-file ", "each request says the form of its answer"},
    {" -q --quantization --rope-scaling --rope-scale --rope-freq-base --override-kv --hf-overrides ",
     "the file says it"},
    {" --tokenizer --tokenizer-mode --load-format --revision ", "a GGUF file has all of a model"},
    {" --generation-config ", "--temp, --top-p and so on hold for requests that don't say"},
    {" --log-file ", "the log goes to standard error, a line of each request to --request-log"},
};

/// "-ngl", not "-1" or "--parallel" or "-c4096".
bool is_long_short(std::string_view name) {
  return name.size() > 2 && name[0] == '-' && name[1] != '-' &&
         std::ranges::all_of(name.substr(1), [](unsigned char c) { return std::isalpha(c) != 0 || c == '-'; });
}

}  // namespace

std::vector<std::string> read_other_servers(std::vector<std::string> arguments) {
  for (std::string& argument : arguments) {
    if (!argument.starts_with('-')) continue;
    const std::string name = argument.substr(0, argument.find('='));
    if (const auto* found = std::ranges::find(kShort, name, &Short::name); found != std::end(kShort)) {
      argument.replace(0, name.size(), found->same);
      continue;
    }
    for (const Otherwise& option : kOtherwise)
      if (option.names.find(" " + name + " ") != std::string_view::npos)
        throw CLI::ValidationError(name, fmt::format("not an option here; {}", option.here));
    if (is_long_short(name)) throw CLI::ValidationError(name, "there is no such option; short ones have one letter");
  }
  return arguments;
}

std::vector<std::string> unread_variables(const CLI::App& command) {
  constexpr std::string_view kOurs = "LLAMA_ARG_";
  std::vector<std::string> unread;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (!text.starts_with(kOurs)) continue;
    std::string name(text.substr(0, text.find('=')));
    const auto reads = [&](const CLI::Option* option) { return option->get_envname() == name; };
    if (std::ranges::none_of(command.get_options(), reads)) unread.push_back(std::move(name));
  }
  std::ranges::sort(unread);
  return unread;
}

}  // namespace coppice::cli
