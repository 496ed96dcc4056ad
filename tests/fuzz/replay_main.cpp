// Runs a fuzz target over files and folders of files, once each: the corpus as a test.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"

namespace {

int replay(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  int n = 0;
  for (const std::string& argument : std::vector<std::string>(argv + 1, argv + argc)) {
    if (!std::filesystem::is_directory(argument)) {
      n += replay(argument);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argument)) n += replay(entry.path());
  }
  std::printf("%d inputs\n", n);
  return n == 0 ? 1 : 0;
}
