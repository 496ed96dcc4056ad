// The files that a server needs: what is read of them before its port opens.
#pragma once

#include <memory>

#include "cli/devices.h"
#include "model/model.h"
#include "text/chat_template.h"
#include "text/vocabulary.h"
#include "vision/pictures.h"

namespace coppice::cli {

struct ServeOptions;

/// What the files hold, but for the weights, which take long to load. A bad file ends the process here, before the port
/// opens.
struct Opened {
  model::Model model;
  Device device;
  std::shared_ptr<const text::Vocabulary> vocabulary;
  std::shared_ptr<const text::ChatTemplate> chat_template;
  std::unique_ptr<vision::Pictures> pictures;  ///< null: the model sees none
};

/// Fills in what the options leave to the files and to free memory. Throws model::LoadError, or std::runtime_error
/// where a template or the options are at fault.
Opened open_files(ServeOptions& options);

}  // namespace coppice::cli
