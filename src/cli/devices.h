// What computes: this machine's CPU, or an NVIDIA GPU through libcoppice_cuda.so, which lies beside the program or in
// ../lib/coppice and is loaded when it is wanted.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "executor/cuda/module.h"
#include "executor/ggml/ggml_executor.h"

namespace coppice::cli {

class Device {
 public:
  /// The CPU.
  Device() = default;
  Device(const executor::cuda::Module& module, executor::cuda::DeviceName gpu)
      : module_(&module), gpu_(std::move(gpu)) {}

  bool is_gpu() const { return module_ != nullptr; }
  /// "the CPU", "GPU 0 (NVIDIA H200)".
  std::string text() const;

  /// Why a GPU can't run the model, as part of a sentence; empty: it can.
  std::string misfit(const model::Model& model) const { return is_gpu() ? module_->misfit(model) : std::string(); }

  /// Options that a GPU hasn't are not looked at there. Throws model::LoadError.
  std::unique_ptr<executor::Executor> load(model::Model model, const executor::GgmlOptions& options,
                                           const executor::Progress& progress) const;

 private:
  const executor::cuda::Module* module_ = nullptr;
  executor::cuda::DeviceName gpu_;
};

/// wanted: "auto", "cpu", "cuda" or "cuda:N". auto takes the first GPU that runs the model with these options, else the
/// CPU, and logs why. Throws std::runtime_error with one sentence when a GPU is wanted that can't be had. program: the
/// folder of this one; others are for tests.
Device choose_device(const std::string& wanted, const model::Model& model, const executor::GgmlOptions& options,
                     const std::filesystem::path& program = {});

/// Empty, or what is wrong with --device's value.
std::string check_device(const std::string& wanted);

}  // namespace coppice::cli
