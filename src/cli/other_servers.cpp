#include "cli/other_servers.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <system_error>
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
/// What is done by other means, or not at all.
constexpr Otherwise kOtherwise[] = {
    {" -sm --split-mode -ts --tensor-split -mg --main-gpu ",
     "one device computes: --device cuda:1 chooses the second GPU"},
    {" -nkvo --no-kv-offload ",
     "keys and values lie where the model is computed; --host-kv-bytes adds memory of this machine"},
    {" --list-devices ",
     "no command lists devices: --device auto takes a GPU that runs the model, and the log names it"},
    {" -cram --cache-ram --gpu-memory-utilization --kv-cache-memory-bytes --swap-space --num-gpu-blocks-override ",
     "--kv-bytes is the size of the KV pool"},
    {" -hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo --download-dir ",
     "'coppice pull hf:OWNER/REPO/FILE' downloads a model, and --model takes its name; 'coppice models' lists those "
     "that are here"},
    {" -hft --hf-token ", "'coppice pull' downloads models, with the token in HF_TOKEN"},
    {" --no-cache-prompt --no-enable-prefix-caching ", "write --share off, or cache_prompt false in a request"},
    {" --allowed-origins ", "--cors takes the origins, separated by commas"},
    {" -to --timeout ", "write --request-seconds, --idle-seconds or --write-seconds"},
    {" --skip-chat-parsing ", "chats' answers are always parsed; /v1/completions gives them as they are"},
    {" --log-disable -lv --verbosity --log-verbosity --log-verbose --uvicorn-log-level ",
     "--log-level says what is logged: debug, info, warn, error or off"},
    {" --ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile ", "use a proxy with TLS"},
    {" --api-prefix --root-path ", "use a proxy that cuts the prefix off"},
    {" --lora --lora-scaled --lora-init-without-apply --enable-lora --lora-modules ",
     "there are no adapters: merge them into the file"},
    {" -mmu --mmproj-url ", "nothing is downloaded: --mmproj takes a file"},
    {" --rerank --reranking ", "no model that can be served ranks"},
    {" --models-dir --models-preset ", "a process serves one model"},
    {" --slot-save-path ", "equal prefixes are found in the cache, and --kv-dir keeps it"},
    {" --mirostat --mirostat-lr --mirostat-ent --typical --typical-p --xtc-probability --xtc-threshold "
     "--dry-multiplier "
     "--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --dynatemp-range --dynatemp-exp "
     "--top-nsigma --top-n-sigma --adaptive-target --adaptive-decay ",
     "this sampler is not built; docs/api.md lists those that are"},
    {" --grammar --grammar-file -j --json-schema -jf --json-schema-file ", "each request says the form of its answer"},
    {" --generation-config --override-generation-config ",
     "--temp, --top-p and so on hold for requests that don't say"},
    {" --log-file --log-jsonl --log-prompts-dir ",
     "the log goes to standard error, a line of each request to --request-log"},
    {" --embd-normalize ", "a request's embd_normalize says it; without, embeddings have length 1"},
    {" --reasoning-effort --reasoning-preserve --no-reasoning-preserve ",
     "--chat-template-kwargs sets variables of the template, as a request's reasoning_effort does"},
    {" --ignore-eos -l --logit-bias ", "each request says it: ignore_eos, logit_bias"},
    {" -r --reverse-prompt ", "each request has its stop strings: stop"},
    {" -sp --special ", "a request's skip_special_tokens false shows them"},
    {" -p --prompt -f --file -bf --binary-file -e ", "each request has its prompt"},
    {" --reuse-port ", "a port has one server; a proxy shares requests out"},
    {" --path ", "there are no files to serve but the page's; --no-page leaves it out"},
    {" --media-path ", "requests have their images' bytes, or URLs of hosts in --allow-media-from"},
    {" -C --cpu-mask -Cr --cpu-range --cpu-strict -Cb --cpu-mask-batch -Crb --cpu-range-batch --cpu-strict-batch ",
     "threads stay on the cores that taskset gives: write it before the command"},
    {" --prio --prio-batch ", "write nice before the command"},
    {" --spm-infill --control-vector --control-vector-scaled --control-vector-layer-range --rpc ", "that is not built"},
    {" --kv-unified-per-slot ", "--ctx bounds each request"},
    {" -nocb --no-cont-batching ", "--max-batch 1 computes one request after the other"},
    {" -cl --cache-list ", "'coppice models' lists local models"},
    {" --usage ", "'coppice serve --help' tells all options"},
    {" --limit-mm-per-prompt ", "--max-images bounds the images of a request"},
    {" --enable-sleep-mode ", "--sleep-idle-seconds lets an idle server's weights go"},
    {" --enable-log-requests --max-log-len ", "--request-log writes a line for each request, without its text"},
    {" --config ", "options stand on the command line, and in llama-server's variables"},
    {" --version ", "'coppice --version' prints it"},
    {" --completion-bash ", "'coppice generate bash' prints it"},
};
/// What needs nothing instead: why.
constexpr Otherwise kLeaveOut[] = {
    {" -cmoe --cpu-moe -ncmoe --n-cpu-moe -ot --override-tensor -ncffn --n-cpu-ffn --no-op-offload --cpu-offload-gb ",
     "a GPU gets all layers; --device cpu uses none"},
    {" -ub --ubatch-size ", "--step-tokens, which is -b, alone bounds a step"},
    {" -tb --threads-batch ", "--threads holds for prompts, too"},
    {" --no-jinja ", "chat templates are always read as Jinja"},
    {" --no-metrics ", "/metrics is always there; --api-keys guards it"},
    {" --mlock -lm --load-mode -lzm --lazy-mode ",
     "weights stay in memory while there is room, and are not locked there"},
    {" -nr --no-repack --no-host ", "weights lie as the device computes fastest"},
    {" -fit --fit -fitt --fit-target -fitc --fit-ctx ",
     "the KV pool and the context fit into memory by themselves; --kv-bytes and --ctx set them"},
    {" -mmdev --mmproj-device --mmproj-offload --no-mmproj-offload ", "the CPU encodes images"},
    {" --models-max --models-autoload --no-models-autoload ", "a process serves one model"},
    {" --tags ", "models have no tags here"},
    {" --context-shift --keep ", "a text over the context is refused or cut, never shifted"},
    {" -sps --slot-prompt-similarity --cache-reuse ", "equal prefixes are found in the cache, whoever computed them"},
    {" -no-kvu --no-kv-unified --no-cache-idle-slots --swa-full -ctxcp --ctx-checkpoints --swa-checkpoints -cms "
     "--checkpoint-min-step -dt --defrag-thold ",
     "one pool and one cache serve all requests; --kv-bytes is their size"},
    {" --samplers --sampler-seq --sampling-seq ", "samplers have a fixed order"},
    {" --repeat-last-n ", "penalties count all of a text"},
    {" -q --quantization --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
     "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast --override-kv --hf-overrides ",
     "the file says it"},
    {" --check-tensors ", "the file's structure is always checked, the weights' values never"},
    {" --tokenizer --tokenizer-mode --load-format --revision ", "a GGUF file has all of a model"},
    {" --no-log-prefix --no-log-timestamps ", "each line of the log has its time and level"},
    {" --log-colors ", "the log has colours on a terminal only"},
    {" --props ", "/props can always be read; what it tells is set by options and by each request"},
    {" --reasoning-budget-message ", "thoughts over the budget end without a message"},
    {" -bs --backend-sampling --spec-draft-backend-sampling --no-spec-draft-backend-sampling ",
     "a GPU draws by itself"},
    {" --threads-http ", "one thread serves all connections; --max-connections bounds them"},
    {" --cors-methods --cors-headers --cors-credentials --no-cors-credentials ",
     "--cors takes origins, and allows what they need"},
    {" --ui-config --webui-config --ui-config-file --webui-config-file ", "the page takes no settings from the server"},
    {" --ui-mcp-proxy --webui-mcp-proxy --tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent ",
     "the server runs no tools; clients run their own"},
    {" --video-fps --video-timestamp-interval --video-ffmpeg-dir ", "there is no video"},
    {" --poll --poll-batch ", "threads sleep while they wait"},
    {" -md --model-draft --draft --draft-n --draft-max --draft-min --spec-draft-model --spec-type --speculative-config "
     "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic ",
     "there are no draft models"},
    {" --mtmd-batch-max-tokens ", "images are encoded one by one"},
    {" --task --runner --convert ", "every model generates and embeds: a request's path says which"},
    {" --max-logprobs ", "a request gets up to 20 for each token"},
    {" -O -O0 -O1 -O2 -O3 --optimization-level -cc --compilation-config ", "nothing is compiled at the start"},
    {" --no-enable-chunked-prefill ", "long prompts are always computed in steps; --step-tokens bounds them"},
    {" --guided-decoding-backend --structured-outputs-config ", "XGrammar is built in, and each request says the form"},
    {" --chat-template-content-format ", "the template itself shows which form of content it reads"},
    {" --response-role ", "answers are the assistant's"},
};
constexpr std::string_view kLayers = " -ngl --gpu-layers --n-gpu-layers ";
constexpr std::string_view kCacheTypes = " -ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype ";

bool is_among(std::string_view names, std::string_view name) {
  return names.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

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

std::string_view answer_in(std::span<const Otherwise> table, std::string_view name) {
  const auto found = std::ranges::find_if(table, [name](const Otherwise& o) { return is_among(o.names, name); });
  return found == table.end() ? std::string_view() : found->here;
}

/// Empty: it is none of these.
std::string_view why_leave_out(std::string_view name) {
  return is_draft(name) ? "there are no draft models" : answer_in(kLeaveOut, name);
}

Meaning meaning_of_layers(std::string_view value) {
  constexpr int kAll = 99;  // what people write who mean all
  Meaning meaning;
  meaning.option = "--device";
  int layers = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), layers);
  const bool number = error == std::errc() && end == value.data() + value.size();
  if (number && layers == 0) {
    meaning.value = "cpu";
  } else if (value != "all" && value != "auto" && (!number || (layers > 0 && layers < kAll))) {
    meaning.refusal = "a GPU gets all layers: leave it out, or write --device cpu";
  }
  return meaning;
}

Meaning meaning_of_cache_type(std::string_view value) {
  Meaning meaning;
  meaning.option = "--kv-format";
  if (value == "auto") return meaning;
  if (value == "f16" || value == "float16") {
    meaning.value = "f16";
  } else if (value.starts_with("q8") || value.starts_with("fp8") || value == "int8") {
    meaning.refusal = "write --kv-format int8 for keys and values";
  } else if (value.starts_with("q4") || value.starts_with("iq4") || value.starts_with("q5")) {
    meaning.refusal = "write --kv-format turbo4 or int8 for keys and values";
  } else {
    meaning.refusal = "--kv-format chooses f16, int8 or turbo4 for keys and values";
  }
  return meaning;
}

void refuse_others(const std::string& name) {
  if (const std::string_view why = why_leave_out(name); !why.empty())
    throw CLI::ValidationError(name, fmt::format("not an option here; leave it out: {}", why));
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
    add_meant();
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
    if (meaning_of(name, "")) return read_meaning(name, argument.substr(equals));
    refuse_others(name);
    const CLI::Option* option = command_.get_option_no_throw(name);
    read_.push_back(name + argument.substr(equals));
    has_unknown_ = has_unknown_ || (option == nullptr && name.starts_with("--"));
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
    said_[option] = std::move(value);
  }

  /// behind: the name, "=99" or nothing.
  void read_meaning(const std::string& name, const std::string& behind) {
    if (behind.empty() && at_ == arguments_.size()) throw CLI::ValidationError(name, "its value is missing");
    const std::string value = behind.empty() ? next() : behind.substr(1);
    const Meaning meaning = meaning_of(name, value).value_or(Meaning());
    if (!meaning.refusal.empty())
      throw CLI::ValidationError(name, fmt::format("{} is no choice here; {}", value, meaning.refusal));
    meant_[meaning.option] = {name, value, meaning.value};
  }

  /// Options of ours that others stand for.
  void add_meant() {
    for (const auto& [ours, meant] : meant_) {
      if (meant.value.empty()) continue;
      const auto said = said_.find(command_.get_option_no_throw(ours));
      if (said != said_.end() && said->second != meant.value && said->second != "none" && said->second != "auto")
        throw CLI::ValidationError(meant.name, fmt::format("{0} means {1} {2}, and {1} is {3}: give one of them",
                                                           meant.given, ours, meant.value, said->second));
      read_.insert(read_.end(), {ours, meant.value});
    }
  }

  void place_first() {
    if (!has_first_ || first_ == named_) return;
    if (!named_.empty() && !has_unknown_)  // what follows an option that CLI11 doesn't know may be its value
      throw CLI::ValidationError(
          "--model", fmt::format("{} and the argument {} are two models: give one of them", named_, first_));
    read_.insert(read_.begin() + static_cast<std::ptrdiff_t>(first_at_), first_);
  }

  std::vector<std::string> arguments_, read_;
  const CLI::App& command_;
  const CLI::Option* model_;
  std::size_t at_ = 0, first_at_ = 0;
  bool has_first_ = false, has_unknown_ = false;
  std::string first_, named_;  ///< the model: the first argument that is no option's; --model's last value
  struct Meant {
    std::string name, given, value;  ///< "-ngl", "0", "cpu"
  };
  std::map<std::string, Meant> meant_;              ///< by the option of ours
  std::map<const CLI::Option*, std::string> said_;  ///< last values
};

}  // namespace

std::string_view instead_of(std::string_view name) {
  if (const std::string_view why = why_leave_out(name); !why.empty()) return why;
  if (is_preset(name)) return "'coppice pull' fetches a model by its name";
  return answer_in(kOtherwise, name);
}

std::optional<Meaning> meaning_of(const std::string& name, std::string_view value) {
  const std::string plain = plain_name(name);
  if (is_among(kLayers, plain)) return meaning_of_layers(value);
  if (is_among(kCacheTypes, plain)) return meaning_of_cache_type(value);
  return std::nullopt;
}

std::vector<std::string> read_other_servers(std::vector<std::string> arguments, const CLI::App& command) {
  return Reader(std::move(arguments), command).read();
}

}  // namespace coppice::cli
