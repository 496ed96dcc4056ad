#include "server/api/llama/llama_answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "server/api/base/telemetry.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

constexpr std::size_t kFrameBytes = 1024;  // what goes around a choice's text, besides the settings
constexpr std::size_t kProbBytes = 80;     // of one token's entry

double finite_logprob(float logprob) {
  return std::max(static_cast<double>(logprob), static_cast<double>(std::numeric_limits<float>::lowest()));
}

/// drawn: as probabilities, of the distribution that the token was drawn from.
JsonObject token_json(const sampling::TokenLogprob& t, bool drawn) {
  JsonArray bytes;
  for (const char c : t.bytes) bytes.push_back(static_cast<unsigned char>(c));
  JsonObject json = {{"id", t.token}, {"token", text::to_utf8(t.bytes)}, {"bytes", std::move(bytes)}};
  if (drawn) {
    json["prob"] = std::exp(static_cast<double>(t.logprob));
  } else {
    json["logprob"] = finite_logprob(t.logprob);
  }
  return json;
}

JsonObject probs_json(const sampling::LogprobEntry& entry, bool drawn) {
  JsonObject json = token_json(entry.chosen, drawn);
  JsonArray top;
  for (const auto& t : entry.top) top.push_back(token_json(t, drawn));
  json[drawn ? "top_probs" : "top_logprobs"] = std::move(top);
  return json;
}

/// "a/b" is the field b of the field a. Those that aren't there are left out.
JsonObject chosen_fields(const JsonObject& all, const std::vector<std::string>& names) {
  JsonObject result;
  for (const std::string& name : names) {
    const JsonObject* object = &all;
    std::string_view rest = name;
    for (auto at = rest.find('/'); object != nullptr && at != std::string_view::npos; at = rest.find('/')) {
      const Json* inner = object->if_contains(rest.substr(0, at));
      object = inner == nullptr ? nullptr : inner->if_object();
      rest.remove_prefix(at + 1);
    }
    if (const Json* value = object == nullptr ? nullptr : object->if_contains(rest)) result[name] = *value;
  }
  return result;
}

const char* stop_type(std::optional<sampling::Finish> finish, const std::string& stop) {
  if (!finish) return "none";
  if (*finish != sampling::Finish::kStop) return "limit";
  return stop.empty() ? "eos" : "word";
}

}  // namespace

LlamaAnswer::LlamaAnswer(LlamaForm form, const GenerationTerms& terms, const sampling::SamplingParams& sampling,
                         JsonObject settings, AnswerHead head)
    : form_(std::move(form)),
      stream_(terms.stream),
      with_probs_(sampling.logprobs >= 0),
      of_drawn_(sampling.logprobs_of_drawn),
      telemetry_(terms.telemetry),
      max_tokens_(terms.max_tokens),
      settings_(std::move(settings)),
      head_(std::move(head)),
      choices_(static_cast<std::size_t>(head_.n_choices)),
      usages_(static_cast<std::size_t>(head_.n_prompts)) {
  for (const std::string& prompt : head_.prompts) bytes_ += prompt.size() * samples();
  bytes_ += (kFrameBytes + dump(settings_).size()) * choices_.size();
}

std::string LlamaAnswer::delta(Delta&& delta) {
  const auto index = static_cast<std::size_t>(delta.choice);
  Choice& choice = choices_.at(index);
  choice.n_tokens += delta.tokens.size();
  choice.new_line |= delta.text.find('\n') != std::string::npos;
  std::string out;
  if (stream_) {
    if (telemetry_.progress)
      for (const engine::Progress& progress : delta.progress) out += progress_event(index, progress);
    if (!delta.text.empty() || !delta.logprobs.empty()) out += event(index, delta);
  } else {
    choice.text += delta.text;
    if (form_.return_tokens) choice.tokens.insert(choice.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    bytes_ += delta.text.size() + 8 * delta.tokens.size();
    for (const auto& entry : delta.logprobs) {
      choice.probs.push_back(probs_json(entry, of_drawn_));
      bytes_ += kProbBytes * (1 + entry.top.size());
    }
  }
  if (delta.end) {
    choice.finish = delta.end->finish;
    choice.stop = std::move(delta.end->stop);
  }
  if (!delta.usage) return out;
  const std::size_t prompt = index / samples();
  usages_[prompt] = *delta.usage;
  // The prompt's last sample has ended: now all of them can tell what they took.
  for (std::size_t i = prompt * samples(); stream_ && i < (prompt + 1) * samples(); ++i)
    out += "data: " + dump(last(i, *delta.usage)) + "\n\n";
  return out;
}

std::string LlamaAnswer::progress_event(std::size_t index, const engine::Progress& progress) const {
  JsonObject json = {{"index", index}, {"content", ""}, {"tokens", JsonArray()},
                     {"stop", false},  {"id_slot", -1}, {"tokens_predicted", 0}};
  add_progress(json, progress, telemetry_);
  return "data: " + dump(std::move(json)) + "\n\n";
}

std::string LlamaAnswer::event(std::size_t index, const Delta& delta) {
  JsonObject json = {
      {"index", index}, {"content", delta.text}, {"tokens", JsonArray(delta.tokens.begin(), delta.tokens.end())},
      {"stop", false},  {"id_slot", -1},         {"tokens_predicted", choices_[index].n_tokens}};
  if (with_probs_) {
    JsonArray& probs = json["completion_probabilities"].emplace_array();
    for (const auto& entry : delta.logprobs) probs.push_back(probs_json(entry, of_drawn_));
  }
  if (telemetry_.timings && delta.so_far) json["timings"] = llama_timings(*delta.so_far, choices_[index].n_tokens);
  return "data: " + dump(std::move(json)) + "\n\n";
}

JsonObject LlamaAnswer::last(std::size_t index, const engine::Usage& usage) {
  Choice& choice = choices_[index];
  const bool limited = choice.finish && *choice.finish == sampling::Finish::kLength;
  const bool truncated = limited && (!max_tokens_ || std::cmp_less(choice.n_tokens, *max_tokens_));
  JsonObject json = {{"index", index},
                     {"content", std::exchange(choice.text, {})},
                     {"tokens", std::exchange(choice.tokens, {})},
                     {"id_slot", -1},
                     {"stop", true},
                     {"model", head_.model},
                     {"tokens_predicted", choice.n_tokens},
                     {"tokens_evaluated", usage.prompt_tokens},
                     {"generation_settings", settings_},
                     {"prompt", head_.prompts.at(index / samples())},
                     {"has_new_line", choice.new_line},
                     {"truncated", truncated},
                     {"stop_type", stop_type(choice.finish, choice.stop)},
                     {"stopping_word", choice.stop},
                     {"tokens_cached", usage.cached_tokens},
                     {"timings", llama_timings(usage, choice.n_tokens)}};
  if (!stream_ && with_probs_) json["completion_probabilities"] = std::exchange(choice.probs, {});
  return form_.response_fields.empty() ? json : chosen_fields(json, form_.response_fields);
}

std::string LlamaAnswer::end(const engine::Usage&, CacheReportList reports) {
  const Json cache_report = cache_reports_json(reports, head_.reporting);
  if (stream_)
    return cache_report.is_null() ? "" : "data: " + dump(JsonObject{{"cache_report", cache_report}}) + "\n\n";
  JsonArray all;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    JsonObject json = last(i, usages_[i / samples()]);
    if (!cache_report.is_null()) json["cache_report"] = cache_report;
    all.push_back(std::move(json));
  }
  bytes_ = 0;
  return form_.list ? dump(std::move(all)) : dump(all.front());
}

std::string LlamaAnswer::error(const RequestError& error) {
  return "data: " + llama_error(error) + "\n\n";
}

}  // namespace coppice::server
