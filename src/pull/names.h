// Names of models at hubs, as people write or paste them, and of files, as hubs list them: what they may hold.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::pull {

/// Text from outside, as a terminal may get it: without control characters, and not too long.
std::string shown(std::string_view text);

std::string lower(std::string text);

/// Not within another word: "f16" is not in "x-bf16".
bool has_word(std::string_view text, std::string_view word);

bool is_hex(std::string_view text, std::size_t digits);

/// Of a file in a folder: nothing that leaves the folder, no control characters, not too long.
bool is_path(std::string_view text);

/// A path or a part of one, as URLs have it.
std::string encoded(std::string_view path);
/// The same, as one step of a path: the slashes, too.
std::string encoded_step(std::string_view text);

struct HubFile {
  std::string repo;  ///< "OWNER/REPO"
  std::string revision = "main";
  std::string file;          ///< may be in a folder; empty: the repository's only GGUF file
  std::string quantization;  ///< if not empty: the only one that has this in its name
};

/// What follows "hf:", or "hf://", or is the same in the address of a page of huggingface.co; none: `text` is no such
/// name.
std::optional<std::string> hub_name(const std::string& text);

/// "OWNER/REPO", "OWNER/REPO:Q4_K_M" or "OWNER/REPO/FILE"; "OWNER/REPO@REVISION" in place of "OWNER/REPO", where
/// REVISION has no slash, or is "refs/KIND/NAME", as of a pull request. Throws std::runtime_error: it is nothing of
/// these.
HubFile parse_hub_file(const std::string& text);

/// As it is pulled: "hf:OWNER/REPO@REVISION/FILE".
std::string hub_text(const HubFile& file);

struct OllamaName {
  std::string host = "registry.ollama.ai", space = "library", name, tag = "latest";

  /// What is as usual is left out, but the tag.
  std::string whole() const;
};

/// "NAME", "NAME:TAG", "NAMESPACE/NAME:TAG" or "HOST/NAMESPACE/NAME:TAG". Throws std::runtime_error: it is nothing of
/// these.
OllamaName parse_ollama_name(const std::string& text);

/// A part of a model in several files: "NAME-00001-of-00003.gguf".
struct ModelPart {
  int number = 0, of = 0;
};
std::optional<ModelPart> model_part(std::string_view file);
/// The name of another part.
std::string with_number(std::string file, int number);

/// Of a repository's files the projectors (mmproj) in GGUF, without what no file can be called. Sorted.
std::vector<std::string> projectors(const std::vector<std::string>& files);

/// Of a repository's files those that `wanted`, which names none, may mean: models in GGUF, of one in parts the first.
/// Sorted. Throws std::runtime_error: one has a name that no file can have.
std::vector<std::string> fitting(const HubFile& wanted, const std::vector<std::string>& files);

}  // namespace coppice::pull
