// Runs a libFuzzer target where there is no libFuzzer (GCC): seeds, then random mutations of them, for a while. It finds
// what blind luck finds; a Clang build has the real engine. Same target, same arguments: DIR… -max_total_time=SECONDS.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t k_input_max_bytes = 8192;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// One small change: a bit, a byte, an interesting number, a piece copied, cut or put in.
void mutate(Bytes& input, std::mt19937& random) {
  static constexpr uint32_t k_interesting[] = {0,      1,      0x7f,       0x80,       0xff,
                                               0x7fff, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
  const size_t at = input.empty() ? 0 : random() % input.size();
  switch (random() % 6) {
    case 0:
      if (!input.empty()) input[at] ^= static_cast<uint8_t>(1U << random() % 8);
      break;
    case 1:
      if (!input.empty()) input[at] = static_cast<uint8_t>(random());
      break;
    case 2:
      for (size_t i = 0, value = k_interesting[random() % std::size(k_interesting)]; i < 4 && at + i < input.size();
           ++i) {
        input[at + i] = static_cast<uint8_t>(value >> 8 * i);
      }
      break;
    case 3: {
      const Bytes piece(input.begin() + static_cast<ptrdiff_t>(at),
                        input.begin() + static_cast<ptrdiff_t>(std::min(input.size(), at + random() % 64)));
      const size_t to = input.empty() ? 0 : random() % input.size();
      input.insert(input.begin() + static_cast<ptrdiff_t>(to), piece.begin(), piece.end());
      break;
    }
    case 4:
      input.resize(at);
      break;
    default:
      for (size_t count = 1 + random() % 16; count > 0; --count) {
        input.insert(input.begin() + static_cast<ptrdiff_t>(at), static_cast<uint8_t>(random()));
      }
  }
  if (input.size() > k_input_max_bytes) input.resize(k_input_max_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view k_time = "-max_total_time=";
  int seconds = 2;
  std::vector<Bytes> seeds = {{}};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(k_time)) {
      seconds = std::atoi(argument.substr(k_time.size()).data());
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) seeds.push_back(read_file(entry.path()));
    } else {
      seeds.push_back(read_file(argument));
    }
  }
  for (const Bytes& seed : seeds) LLVMFuzzerTestOneInput(seed.data(), seed.size());
  std::mt19937 random(1);  // the same inputs each time, as far as the time allows
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    Bytes input = seeds[random() % seeds.size()];
    for (size_t changes = 1 + random() % 8; changes > 0; --changes) mutate(input, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%llu inputs\n", static_cast<unsigned long long>(runs));
  return 0;
}
