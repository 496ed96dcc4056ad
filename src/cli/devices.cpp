// Another device: a folder executor/DEVICE that implements Executor (executor/executor.h) with all its operators and
// weights, tree attention in attention/DEVICE (as cuda), and a choice here. ExecutorInfo is all that cache and server
// see of it; moves_blocks says that it runs the operations that store and load blocks (kv/types.h). Batch checks,
// pages, layer groups and rotations are in executor/base.
#include "cli/devices.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "build_id.h"
#include "port/process.h"

namespace coppice::cli {

namespace {

namespace cuda = executor::cuda;

constexpr const char* kModuleFile = "libcoppice_cuda.so";
constexpr int kLostDevice = 70;  ///< the status: EX_SOFTWARE of sysexits.h

/// A module, or why there is none, as part of a sentence.
struct Found {
  const cuda::Module* module = nullptr;
  std::string why_not;
  bool is_there = false;  ///< its file
};

/// A copy that broke off: the system would load it, and end the process where pages are missing. An ELF file's table of
/// sections is its end.
bool is_cut_off(const std::filesystem::path& file) {
  struct Header {  // of a 64-bit one
    char magic[4], rest[36];
    std::uint64_t sections_at;
    char more[10];
    std::uint16_t section_bytes, n_sections, names;
  } header{};
  std::ifstream in(file, std::ios::binary);
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  if (!in || std::string_view(header.magic, 4) != "\177ELF") return false;  // what else it is, the loader says
  std::error_code error;
  const std::uint64_t end = header.sections_at + std::uint64_t{header.section_bytes} * header.n_sections;
  return std::filesystem::file_size(file, error) < end || error;
}

Found open_module(const std::filesystem::path& file) {
  const auto broken = [](std::string why) { return Found{nullptr, std::move(why), true}; };
  if (is_cut_off(file)) return broken(fmt::format("{} is not whole", file.string()));
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return broken(fmt::format("{} can't be loaded: {}", file.string(), dlerror()));
  auto* get = reinterpret_cast<decltype(&coppice_cuda_module)>(dlsym(library, "coppice_cuda_module"));
  if (get == nullptr) return broken(fmt::format("{} is no part of coppice", file.string()));
  const cuda::Module* module = get();
  if (std::string_view(module->build) != COPPICE_BUILD)
    return broken(fmt::format("{} is of build {}, this program of {}; both must come from one build", file.string(),
                              module->build, COPPICE_BUILD));
  return {module, {}, true};
}

Found find_module(std::filesystem::path folder) {
  if (folder.empty()) folder = port::program_path().parent_path();
  std::error_code error;
  for (const std::filesystem::path& file : {folder / kModuleFile, folder / ".." / "lib" / "coppice" / kModuleFile}) {
    if (std::filesystem::exists(file, error)) return open_module(file);
  }
  return {nullptr, fmt::format("the part for NVIDIA GPUs ({}) is not installed", kModuleFile)};
}

/// Of "cuda:N"; nullopt: any.
std::optional<int> wanted_number(const std::string& wanted) {
  const auto colon = wanted.find(':');
  if (colon == std::string::npos) return std::nullopt;
  int number = 0;
  std::from_chars(wanted.data() + colon + 1, wanted.data() + wanted.size(), number);
  return number;
}

/// A GPU, or why there is none.
struct Gpu {
  std::optional<Device> device;
  std::string why_not;
  bool is_fault = false;  ///< there may be one, but its module can't be used
};

Gpu find_gpu(const std::string& wanted, const std::filesystem::path& program) {
  const Found found = find_module(program);
  if (found.module == nullptr) return {{}, found.why_not, found.is_there};
  const cuda::Devices devices = found.module->find_devices();
  if (devices.usable.empty()) return {{}, devices.why_none};
  const std::optional<int> number = wanted_number(wanted);
  const auto gpu =
      number ? std::ranges::find(devices.usable, *number, &cuda::DeviceName::number) : devices.usable.begin();
  if (gpu != devices.usable.end()) return {Device(*found.module, *gpu), {}};
  std::vector<int> numbers;
  for (const cuda::DeviceName& d : devices.usable) numbers.push_back(d.number);
  return {{}, fmt::format("there is no GPU {}; there are: {}", *number, fmt::join(numbers, ", "))};
}

/// What a GPU can't do of the options, as part of a sentence; empty: all.
std::string misfit_of_options(const executor::GgmlOptions& o) {
  if (o.attention != "auto" && o.attention != "tree") return "--attention " + o.attention;
  if (o.kv_format == "turbo4") return "--kv-format turbo4";
  if (o.block_size != 32) return fmt::format("--block-size {}", o.block_size);
  return {};
}

/// Nothing of this process runs on a lost GPU any more, and what else would be done at the end may hang on it.
void end_process(const std::string& sentence) {
  fmt::print(stderr, "coppice: {}. The process ends.\n", sentence);
  std::fflush(nullptr);
  std::_Exit(kLostDevice);
}

}  // namespace

std::string Device::text() const {
  return is_gpu() ? fmt::format("GPU {} ({})", gpu_.number, gpu_.name) : "the CPU";
}

std::unique_ptr<executor::Executor> Device::load(model::Model model, const executor::GgmlOptions& o,
                                                 const executor::Progress& progress) const {
  if (!is_gpu()) return executor::load_ggml_executor(std::move(model), o, progress);
  return module_->load(std::move(model),
                       {.device = gpu_.number,
                        .kv_format = o.kv_format,
                        .kv_bytes = o.kv_bytes,
                        .block_size = o.block_size,
                        .max_rows = o.max_rows,
                        .max_sequences = o.max_sequences,
                        .context = o.context,
                        .lost = end_process,
                        .log = spdlog::default_logger()},
                       progress);
}

Device choose_device(const std::string& wanted, const model::Model& model, const executor::GgmlOptions& options,
                     const std::filesystem::path& program) {
  if (wanted == "cpu") return {};
  const bool must = wanted != "auto";
  const Gpu gpu = find_gpu(wanted, program);
  if (!gpu.device) {
    if (must) throw std::runtime_error(fmt::format("--device {} can't be had: {}.", wanted, gpu.why_not));
    spdlog::log(gpu.is_fault ? spdlog::level::warn : spdlog::level::debug, "on the CPU: {}", gpu.why_not);
    return {};
  }
  std::string misfit = misfit_of_options(options);
  if (must && !misfit.empty()) throw std::runtime_error(fmt::format("--device {} has no {}.", wanted, misfit));
  if (!must && misfit.empty()) misfit = gpu.device->misfit(model);
  if (misfit.empty()) return *gpu.device;
  spdlog::warn("on the CPU: {} can't serve {}", gpu.device->text(), misfit);
  return {};
}

std::string check_device(const std::string& wanted) {
  const bool numbered = wanted.starts_with("cuda:") && wanted.size() > 5 && wanted.size() < 9 &&
                        std::ranges::all_of(wanted.substr(5), [](char c) { return c >= '0' && c <= '9'; });
  if (wanted == "auto" || wanted == "cpu" || wanted == "cuda" || numbered) return {};
  return fmt::format("{} is no device; auto, cpu, cuda and cuda:0, cuda:1, ... are", wanted);
}

}  // namespace coppice::cli
