// Models that lie on this machine already, where other programs have put them, and the names that they can be called
// by.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace coppice::cli {

struct LocalModel {
  std::string name;                      ///< of no other model in its place: "publisher/repo/file", "llama3.2:1b"
  std::string served;                    ///< by this name: the file's, without ending and part's number, or Ollama's
  std::vector<std::string> aliases;      ///< others may have them, too: "publisher/repo", "repo", "file"
  std::filesystem::path path;            ///< of a split model the first part
  std::filesystem::path projector = {};  ///< where the place says so, as Ollama's does; else empty (projector_files.h)
};

class NoSuchModel : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Where a program keeps models.
struct ModelPlace {
  std::string owner;             ///< "Hugging Face"
  std::filesystem::path folder;  ///< it need not be there
  std::vector<LocalModel> models;
};

/// Looks into COPPICE_MODELS (folders, separated by colons), the caches of Hugging Face, Ollama, LM Studio and
/// llama.cpp, and our own: as the environment says where they are. What can't be read is left out. Opens no model.
std::vector<ModelPlace> local_models();

/// Where Hugging Face's tools and Ollama keep theirs, as the environment says.
std::filesystem::path hugging_face_folder();
std::filesystem::path ollama_folder();
/// Our own.
std::filesystem::path own_folder();

/// The GGUF files in a folder and the folders in it, some levels deep. Throws std::runtime_error: it can't be read.
std::vector<LocalModel> models_in(const std::filesystem::path& folder);

/// The file that somebody means who says: a file; a folder with one model; what 'coppice pull' calls a model of Hugging
/// Face's hub; or a local model's name, a part of it that fits one only, or "publisher/repo:Q4_K_M". Capitals don't
/// count in names. Projectors (mmproj) are no models here. Throws NoSuchModel: there is none of this name;
/// std::runtime_error: there are several, which it lists, or it can be no name.
LocalModel find_model(const std::string& wanted);

}  // namespace coppice::cli
