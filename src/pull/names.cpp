#include "pull/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <initializer_list>
#include <stdexcept>

#include "server/fetch/url.h"
#include "server/http/http_head.h"

namespace coppice::pull {

namespace {

constexpr std::size_t kLongestShown = 200, kLongestPath = 1024, kLongestStep = 255, kLongestName = 128;  // bytes
constexpr std::string_view kPart = "-00000-of-00000.gguf";                                               // any digits

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// Of those of Unicode that are one byte, or two in UTF-8.
bool is_control(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
  return byte(at) < ' ' || byte(at) == 0x7f || (byte(at) == 0xc2 && byte(at + 1) >= 0x80 && byte(at + 1) < 0xa0);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> steps;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('/', begin), text.size());
    steps.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return steps;
}

bool is_step(std::string_view text) {
  if (text.empty() || text.size() > kLongestStep || text == "." || text == ".." || text.contains('\\')) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (is_control(text, i)) return false;
  return true;
}

/// As owners, repositories, models and tags are called.
bool is_plain(std::string_view text) {
  return !text.empty() && text.size() <= kLongestName && is_word(text.front()) &&
         std::ranges::all_of(text, [](char c) { return is_word(c) || c == '-' || c == '.'; });
}

bool is_host(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  const std::string_view port = text.substr(colon);
  return is_plain(text.substr(0, colon)) && port.size() != 1 && port.size() <= 6 &&
         std::ranges::all_of(port.substr(std::min<std::size_t>(1, port.size())), is_digit);
}

/// What follows the last `mark`, which is cut off; none: there is no mark.
std::optional<std::string> cut_off(std::string& text, char mark) {
  const std::size_t at = text.rfind(mark);
  if (at == text.npos) return std::nullopt;
  std::string end = text.substr(at + 1);
  text.resize(at);
  return end;
}

}  // namespace

std::string shown(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < std::min(text.size(), kLongestShown); ++i) {
    const bool control = is_control(text, i);
    result += control ? '?' : text[i];
    if (control && static_cast<unsigned char>(text[i]) == 0xc2) ++i;
  }
  return text.size() > kLongestShown ? result + "..." : result;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end]))) return true;
  }
  return false;
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits &&
         std::ranges::all_of(text, [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

bool is_path(std::string_view text) {
  return text.size() <= kLongestPath && std::ranges::all_of(split(text), is_step);
}

std::string encoded(std::string_view path) {
  std::string text;
  for (const char c : path)
    text += is_word(c) || std::string_view("-.~/").contains(c) ? std::string(1, c)
                                                               : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return text;
}

std::string encoded_step(std::string_view text) {
  std::string step;
  for (const char c : encoded(text)) step += c == '/' ? "%2F" : std::string(1, c);
  return step;
}

std::optional<std::string> hub_name(const std::string& text) {
  for (const std::string_view scheme : {"hf://", "hf:"})
    if (text.starts_with(scheme)) return text.substr(scheme.size());
  const auto url = server::parse_url(text);
  if (!url || (url->host != "huggingface.co" && url->host != "hf.co")) return std::nullopt;
  std::string path = server::percent_decoded(url->target.substr(1, url->target.find('?') - 1));
  if (path.ends_with('/')) path.pop_back();
  const std::vector<std::string> steps = split(path);  // OWNER/REPO/blob/REVISION/FILE
  if (steps.size() < 4 || (steps[2] != "blob" && steps[2] != "resolve" && steps[2] != "tree")) return path;
  std::string name = fmt::format("{}/{}@{}", steps[0], steps[1], steps[3]);
  for (std::size_t i = 4; i < steps.size(); ++i) name += "/" + steps[i];
  return name;
}

HubFile parse_hub_file(const std::string& text) {
  HubFile wanted;
  const std::size_t owner = text.find('/');
  std::size_t repo = owner == text.npos ? text.npos : text.find('/', owner + 1);
  if (text.substr(0, repo).ends_with("@refs"))  // the next two steps are the revision's, too
    for (int i = 0; i < 2 && repo != text.npos; ++i) repo = text.find('/', repo + 1);
  wanted.repo = text.substr(0, repo);
  bool good = is_path(text);
  if (repo != text.npos) {
    wanted.file = text.substr(repo + 1);
    good = good && is_path(wanted.file);
  } else if (const auto quantization = cut_off(wanted.repo, ':')) {
    wanted.quantization = *quantization;
    good = good && is_plain(wanted.quantization);
  }
  if (const auto revision = cut_off(wanted.repo, '@')) {
    wanted.revision = *revision;
    good = good && is_path(wanted.revision);
  }
  const std::vector<std::string> steps = split(wanted.repo);
  if (!good || steps.size() != 2 || !std::ranges::all_of(steps, is_plain))
    throw std::runtime_error(
        fmt::format("'hf:{}' is not hf:OWNER/REPO/FILE, hf:OWNER/REPO or hf:OWNER/REPO:Q4_K_M.", shown(text)));
  return wanted;
}

std::string hub_text(const HubFile& file) {
  const std::string at = file.revision == HubFile().revision ? "" : "@" + file.revision;
  return fmt::format("hf:{}{}/{}", file.repo, at, file.file);
}

std::string OllamaName::whole() const {
  const OllamaName usual;
  const std::string place = host == usual.host ? "" : host + "/";
  return place + (space == usual.space && place.empty() ? "" : space + "/") + name + ":" + tag;
}

OllamaName parse_ollama_name(const std::string& text) {
  OllamaName name;
  std::vector<std::string> steps = split(text);
  if (const auto tag = cut_off(steps.back(), ':')) name.tag = *tag;
  name.name = steps.back();
  if (steps.size() > 1) name.space = steps[steps.size() - 2];
  if (steps.size() > 2) name.host = steps.front();
  if (steps.size() > 3 || !is_host(name.host) || !is_plain(name.space) || !is_plain(name.name) || !is_plain(name.tag))
    throw std::runtime_error(
        fmt::format("'{}' is no model's name: NAME:TAG, as Ollama has it, or hf:OWNER/REPO/FILE.", shown(text)));
  if (name.host.find_first_of(".:") == std::string::npos && name.host != "localhost")
    throw std::runtime_error(
        fmt::format("'{}': {} is no registry's host. If it is a file of Hugging Face's: hf:{}", text, name.host, text));
  return name;
}

std::optional<ModelPart> model_part(std::string_view file) {
  if (file.size() < kPart.size()) return std::nullopt;
  const std::string end = lower(std::string(file.substr(file.size() - kPart.size())));
  std::string form = end;
  std::ranges::replace_if(form, is_digit, '0');
  if (form != kPart) return std::nullopt;
  ModelPart part;
  std::from_chars(&end[1], &end[6], part.number);
  std::from_chars(&end[10], &end[15], part.of);
  return part;
}

std::string with_number(std::string file, int number) {
  return file.replace(file.size() - kPart.size() + 1, 5, fmt::format("{:05}", number));
}

std::vector<std::string> projectors(const std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const std::string& file : files)
    if (const std::string low = lower(file); low.ends_with(".gguf") && low.contains("mmproj") && is_path(file))
      found.push_back(file);
  std::ranges::sort(found);
  return found;
}

std::vector<std::string> fitting(const HubFile& wanted, const std::vector<std::string>& files) {
  std::vector<std::string> found;
  for (const std::string& file : files) {
    const std::string low = lower(file);
    if (!low.ends_with(".gguf") || low.contains("mmproj")) continue;
    if (!is_path(file))
      throw std::runtime_error(
          fmt::format("{} lists a file that no folder can hold by this name: '{}'.", wanted.repo, shown(file)));
    if (const auto part = model_part(file); part && part->number != 1) continue;
    if (wanted.quantization.empty() || has_word(low, lower(wanted.quantization))) found.push_back(file);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace coppice::pull
