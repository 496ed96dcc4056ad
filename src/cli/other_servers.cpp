#include "cli/other_servers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <string_view>
#include <utility>

namespace coppice::cli {
namespace {

struct Short {
  std::string_view name, same;
};
constexpr Short kShort[] = {{"-np", "--parallel"},
                            {"-fa", "--flash-attn"},
                            {"-rea", "--reasoning"},
                            {"-mm", "--mmproj"},
                            {"-cb", "--cont-batching"},
                            {"-tp", "--tensor-parallel-size"},
                            {"-kvu", "--kv-unified"},
                            {"-kvo", "--kv-offload"},
                            {"-no-ag", "--no-agent"},
                            {"-dev", "--device"},
                            {"-pp", "--pipeline-parallel-size"},
                            {"-dp", "--data-parallel-size"}};

struct Otherwise {
  std::string_view names, here;  ///< names: with a space before and behind each
};
constexpr Otherwise kOtherwise[] = {
    {" -ngl --gpu-layers --n-gpu-layers -cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor ",
     "--device chooses what computes, and a GPU gets all layers"},
    {" -sm --split-mode -ts --tensor-split -mg --main-gpu ", "--device chooses what computes: one device"},
    {" -ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype ", "--kv-format chooses f16, int8 or turbo4 for both"},
    {" -ub --ubatch-size ", "--step-tokens alone bounds a step"},
    {" -tb --threads-batch ", "--threads holds for prompts, too"},
    {" -cram --cache-ram --gpu-memory-utilization --kv-cache-memory-bytes --swap-space --num-gpu-blocks-override ",
     "--kv-bytes is the size of the KV pool"},
    {" -hf -hfr --hf-repo -hff --hf-file -hft --hf-token -mu --model-url -dr --docker-repo --download-dir ",
     "'coppice pull hf:OWNER/REPO/FILE' downloads a model, and --model takes its name; 'coppice models' lists those "
     "that are here"},
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
    {" -mmdev --mmproj-device --mmproj-offload --no-mmproj-offload ", "the CPU encodes images"},
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
    {" --log-file --log-jsonl --log-prompts-dir --no-log-prefix --no-log-timestamps --log-colors ",
     "the log goes to standard error, a line of each request to --request-log"},
    {" --log-verbose ", "--log-level says what is logged"},
    {" --props ", "/props can be read; what it tells is set by options and by each request"},
    {" --embd-normalize ", "a request's embd_normalize says it; without, embeddings have length 1"},
    {" --reasoning-effort --reasoning-preserve --no-reasoning-preserve ",
     "--chat-template-kwargs sets variables of the template, as a request's reasoning_effort does"},
    {" --reasoning-budget-message ", "thoughts over the budget end without a message"},
    {" --ignore-eos -l --logit-bias ", "each request says it: ignore_eos, logit_bias"},
    {" -r --reverse-prompt ", "each request has its stop strings: stop"},
    {" -sp --special ", "a request's skip_special_tokens false shows them"},
    {" -p --prompt -f --file -bf --binary-file --keep ", "each request has its prompt, and none is shifted"},
    {" -bs --backend-sampling --spec-draft-backend-sampling --no-spec-draft-backend-sampling ",
     "a GPU draws by itself"},
    {" --threads-http ", "one thread serves all connections; --max-connections bounds them"},
    {" --reuse-port ", "a port has one server; a proxy shares requests out"},
    {" --path ", "there are no files to serve but the page's; --no-page leaves it out"},
    {" --cors-methods --cors-headers --cors-credentials --no-cors-credentials ",
     "--cors takes origins, and allows what they need"},
    {" --ui-config --webui-config --ui-config-file --webui-config-file --ui-mcp-proxy --webui-mcp-proxy --tools "
     "--tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent --media-path --video-fps "
     "--video-timestamp-interval --video-ffmpeg-dir ",
     "the server runs no tools and reads no clients' files; clients run their own"},
    {" --models-max --models-autoload --no-models-autoload --tags ", "a process serves one model"},
    {" -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
     "--cpu-strict-batch "
     "--prio-batch --poll-batch ",
     "threads find free cores by themselves, and sleep while they wait; taskset and nice bound them"},
    {" -lcs --lookup-cache-static -lcd --lookup-cache-dynamic --lora-init-without-apply --spm-infill --control-vector "
     "--control-vector-scaled --control-vector-layer-range --rpc ",
     "that is not built"},
    {" --kv-unified-per-slot -no-kvu --no-kv-unified -nocb --no-cont-batching --no-cache-idle-slots --swa-full -ctxcp "
     "--ctx-checkpoints "
     "--swa-checkpoints -cms --checkpoint-min-step -dt --defrag-thold ",
     "one pool and one cache serve all requests; --share and --kv-bytes bound them"},
    {" --sampler-seq --top-nsigma --top-n-sigma --xtc-threshold --typical-p --dry-base --dry-allowed-length "
     "--dry-penalty-last-n "
     "--dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-exp --mirostat-lr --mirostat-ent ",
     "this sampler is not built; docs/api.md lists those that are"},
    {" --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast "
     "--check-tensors ",
     "the file says it"},
    {" -nkvo --no-kv-offload --no-op-offload -nr --no-repack --no-host -lm --load-mode -lzm --lazy-mode --list-devices "
     "-ncffn "
     "--n-cpu-ffn -fit --fit -fitt --fit-target -fitc --fit-ctx ",
     "--device chooses what computes, --kv-bytes how large the pool is"},
    {" --mtmd-batch-max-tokens ", "images are encoded one by one"},
    {" -cl --cache-list ", "'coppice models' lists local models"},
    {" -e ", "each request has its prompt"},
    {" --usage ", "'coppice serve --help' tells all options"},
    {" --limit-mm-per-prompt ", "--max-images bounds the images of a request"},
    {" --task --runner --convert ", "every model generates and embeds: a request's path says which"},
    {" --enable-sleep-mode ", "--sleep-idle-seconds lets an idle server's weights go"},
    {" --max-logprobs ", "a request gets up to 20 for each token"},
    {" -O -O0 -O1 -O2 -O3 --optimization-level -cc --compilation-config ", "nothing is compiled at the start"},
    {" --cpu-offload-gb ", "--device chooses what computes, and all weights lie there"},
    {" --no-enable-chunked-prefill ", "long prompts are always computed in steps; --step-tokens bounds them"},
    {" --enable-log-requests --max-log-len ", "--request-log writes a line for each request, without its text"},
    {" --guided-decoding-backend --structured-outputs-config ", "XGrammar is built in, and each request says the form"},
    {" --override-generation-config ", "--temp, --top-p and so on hold for requests that don't say"},
    {" --chat-template-content-format ", "the template itself shows which form of content it reads"},
    {" --response-role ", "answers are the assistant's"},
    {" --config ", "options stand on the command line, and in llama-server's variables"},
    {" --version ", "'coppice --version' prints it"},
    {" --completion-bash ", "'coppice generate bash' prints it"},
};

/// "-ngl", not "-1" or "--parallel" or "-c4096".
bool is_long_short(std::string_view name) {
  return name.size() > 2 && name[0] == '-' && name[1] != '-' &&
         std::ranges::all_of(name.substr(1), [](unsigned char c) { return std::isalpha(c) != 0 || c == '-'; });
}

/// Of llama-server's many options of drafts.
bool is_draft(std::string_view name) {
  return name.starts_with("--spec-") || (name.starts_with("--") && name.ends_with("-draft")) ||
         name.starts_with("--draft-") || name == "-hfd" || name == "-hfrd" || name == "-td" || name == "-tbd" ||
         name == "-Cd" || name == "-Crd" || name == "-Cbd" || name == "-ctkd" || name == "-ctvd" || name == "-otd" ||
         name == "-cmoed" || name == "-ncmoed" || name == "-devd" || name == "-ngld";
}

/// "--fim-qwen-7b-default": a model that llama-server downloads.
bool is_preset(std::string_view name) {
  return name.starts_with("--") && (name.ends_with("-default") || name.ends_with("-spec"));
}

/// The option's name as CLI11 knows it. llama-server takes underscores for dashes, and has short names of several
/// letters.
std::string plain_name(std::string name) {
  if (name.starts_with("--")) std::ranges::replace(name, '_', '-');
  const auto* found = std::ranges::find(kShort, name, &Short::name);
  return found == std::end(kShort) ? name : std::string(found->same);
}

void refuse_others(const std::string& name) {
  if (const std::string_view here = instead_of(name); !here.empty())
    throw CLI::ValidationError(name, fmt::format("not an option here; {}", here));
  if (is_long_short(name)) throw CLI::ValidationError(name, "there is no such option; short ones have one letter");
}

/// The arguments behind `serve`, read from the first to the last.
class Reader {
 public:
  Reader(std::vector<std::string> arguments, const CLI::App& command)
      : arguments_(std::move(arguments)), command_(command), model_(command.get_option("--model")) {}

  std::vector<std::string> read() {
    while (at_ < arguments_.size() && arguments_[at_] != "--") {
      std::string argument = next();
      if (argument.size() > 1 && argument[0] == '-') {
        read_option(argument);
      } else if (std::exchange(has_first_, true)) {
        read_.push_back(std::move(argument));  // one too many, which CLI11 says
      } else {
        first_ = std::move(argument);
        first_at_ = read_.size();
      }
    }
    place_first();
    while (at_ < arguments_.size()) read_.push_back(next());
    return std::move(read_);
  }

 private:
  std::string next() { return std::move(arguments_[at_++]); }
  /// Whether a value, or another one, may follow.
  bool value_follows() const { return at_ < arguments_.size() && !arguments_[at_].starts_with('-'); }
  /// Whether the model is said before, or by its option behind.
  bool has_model() const {
    const auto says = [](const std::string& a) { return a == "-m" || a == "--model" || a.starts_with("--model="); };
    return has_first_ || !named_.empty() ||
           std::any_of(arguments_.begin() + static_cast<std::ptrdiff_t>(at_), arguments_.end(), says);
  }

  void read_option(const std::string& argument) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string name = plain_name(argument.substr(0, equals));
    refuse_others(name);
    const CLI::Option* option = command_.get_option_no_throw(name);
    read_.push_back(name + argument.substr(equals));
    if (option == nullptr || option->get_expected_max() == 0) return;  // a flag, or "-c4096"
    std::string value;
    if (equals < argument.size()) {
      value = argument.substr(equals + 1);
    } else if (name == "--flash-attn" && !value_follows()) {
      read_.back() += "=on";  // it was a flag once
    } else if (at_ < arguments_.size()) {
      value = next();
      // vLLM's has several values. Where nothing else says the model, one of them may be it.
      while (name == "--served-model-name" && has_model() && value_follows()) value += ',' + next();
      read_.push_back(value);
    }
    if (option == model_) named_ = value;
  }

  void place_first() {
    if (!has_first_ || first_ == named_) return;
    if (!named_.empty())
      throw CLI::ValidationError(
          "--model", fmt::format("{} and the argument {} are two models: give one of them", named_, first_));
    read_.insert(read_.begin() + static_cast<std::ptrdiff_t>(first_at_), first_);
  }

  std::vector<std::string> arguments_, read_;
  const CLI::App& command_;
  const CLI::Option* model_;
  std::size_t at_ = 0, first_at_ = 0;
  bool has_first_ = false;
  std::string first_, named_;  ///< the model: the first argument that is no option's; --model's last value
};

}  // namespace

std::string_view instead_of(std::string_view name) {
  if (is_draft(name)) return "there are no draft models";
  if (is_preset(name)) return "'coppice pull' fetches a model by its name";
  const std::string between_spaces = fmt::format(" {} ", name);
  for (const Otherwise& option : kOtherwise)
    if (option.names.find(between_spaces) != std::string_view::npos) return option.here;
  return {};
}

std::vector<std::string> read_other_servers(std::vector<std::string> arguments, const CLI::App& command) {
  return Reader(std::move(arguments), command).read();
}

}  // namespace coppice::cli
