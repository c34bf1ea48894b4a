// How long does a client wait for a kernel that is cached, and how long until a published one can be mapped?
//
// The warm start is measured in a fresh process for each sample, which loads the reader as a shared library, opens the cache
// and maps and checks a first 16 KiB kernel. The peer of "next kernel" is reading a file of the same size into memory that
// is then made executable.
//   cache_bench [--json FILE]
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cache/reader/reader.h"
#include "cache/store/store.h"

namespace {

using namespace kiln;
using Clock = std::chrono::steady_clock;

constexpr uint32_t k_kernels = 1000;
constexpr size_t k_samples = 41;
constexpr size_t k_first_bytes = 16 << 10;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Row {
  std::string name;
  double median;
  double spread;  // interquartile range over median
  std::optional<double> peer;
};

Row row_of(std::string name, std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t n = samples.size();
  const double median = samples[n / 2];
  return {std::move(name), median, (samples[n * 3 / 4] - samples[n / 4]) / median, std::nullopt};
}

Digest key_of(uint32_t kernel) { return digest_of("kernel " + std::to_string(kernel)); }
size_t size_of(uint32_t kernel) {
  return kernel == 0 ? k_first_bytes : kernel == 1 ? 256 << 10 : 4096 + kernel * 37 % 40'000;
}

PublishBatch kernel_batch(uint32_t kernel) {
  PublishBatch batch;
  std::vector<uint8_t> code(size_of(kernel), 0xc3);  // ret
  std::memcpy(code.data() + 1, &kernel, sizeof kernel);
  batch.artifacts.push_back({ArtifactKind::code, {0, 1, 0, 0, "cpu"}, std::move(code)});
  Head head;
  head.key = key_of(kernel);
  head.artifact = artifact_digest(batch.artifacts[0]);
  batch.heads.push_back(std::move(head));
  return batch;
}

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "cache_bench: %s does not hold\n", #condition); \
      std::exit(1);                                                        \
    }                                                                      \
  } while (false)

/// From dlopen to the first kernel called; the process has done nothing before.
double first_kernel_us(const char* library, const char* directory) {
  const Digest key = key_of(0);
  const auto start = Clock::now();
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  CHECK(handle != nullptr);
  const auto open = reinterpret_cast<decltype(&kiln_reader_open)>(dlsym(handle, "kiln_reader_open"));
  const auto find = reinterpret_cast<decltype(&kiln_reader_find_key)>(dlsym(handle, "kiln_reader_find_key"));
  const auto map = reinterpret_cast<decltype(&kiln_reader_map_code)>(dlsym(handle, "kiln_reader_map_code"));
  kiln_reader* reader = open(directory);
  kiln_view view;
  const uint8_t* code = nullptr;
  CHECK(find(reader, key.bytes.data(), KILN_ARTIFACT_CODE, &view) == KILN_HIT);
  CHECK(map(reader, &view, &code) == KILN_HIT);
  reinterpret_cast<void (*)()>(const_cast<uint8_t*>(code))();
  return us_since(start);
}

/// Runs this program anew with `first_kernel_us`.
double warm_start_us(const std::string& library, const std::string& directory) {
  const std::string command = fmt::format("/proc/{}/exe --first-kernel {} {}", getpid(), library, directory);
  FILE* output = popen(command.c_str(), "r");
  double us = 0;
  CHECK(output != nullptr && std::fscanf(output, "%lf", &us) == 1);
  CHECK(pclose(output) == 0);
  return us;
}

/// What a cache of plain files would do: read, check nothing, make executable.
double file_kernel_us(const std::string& path, size_t size) {
  const auto start = Clock::now();
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* code = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  CHECK(read(fd, code, size) == static_cast<ssize_t>(size));
  close(fd);
  CHECK(mprotect(code, size, PROT_READ | PROT_EXEC) == 0);
  reinterpret_cast<void (*)()>(code)();
  const double us = us_since(start);
  munmap(code, size);
  return us;
}

double next_kernel_us(kiln_reader* reader, uint32_t kernel) {
  const Digest key = key_of(kernel);
  const auto start = Clock::now();
  kiln_view view;
  const uint8_t* code = nullptr;
  CHECK(kiln_reader_find_key(reader, key.bytes.data(), KILN_ARTIFACT_CODE, &view) == KILN_HIT);
  CHECK(kiln_reader_map_code(reader, &view, &code) == KILN_HIT);
  reinterpret_cast<void (*)()>(const_cast<uint8_t*>(code))();
  return us_since(start);
}

Row next_kernel_row(const std::string& name, const std::string& directory, uint32_t kernel) {
  const std::string file = directory + "/plain";
  std::ofstream(file, std::ios::binary) << std::string(size_of(kernel), '\xc3');
  std::vector<double> ours, peers;
  for (size_t sample = 0; sample < k_samples; ++sample) {
    kiln_reader* reader = kiln_reader_open(directory.c_str());
    next_kernel_us(reader, 2);  // the file is mapped; this kernel was not looked at before
    ours.push_back(next_kernel_us(reader, kernel));
    kiln_reader_close(reader);
    peers.push_back(file_kernel_us(file, size_of(kernel)));
  }
  Row row = row_of(name, ours);
  row.peer = row_of("", peers).median;
  return row;
}

Row publish_row(CacheStore& store, const std::string& directory) {
  kiln_reader* reader = kiln_reader_open(directory.c_str());
  std::vector<double> samples;
  for (uint32_t kernel = k_kernels; kernel < k_kernels + k_samples; ++kernel) {
    const PublishBatch batch = kernel_batch(kernel);
    const auto start = Clock::now();
    CHECK(store.publish(batch).ok());
    CHECK(store.flush().ok());
    next_kernel_us(reader, kernel);
    samples.push_back(us_since(start));
  }
  kiln_reader_close(reader);
  return row_of("publish, flush, mapped", samples);
}

Row restart_row(const std::string& directory) {
  std::vector<double> samples;
  for (int sample = 0; sample < 5; ++sample) {
    const auto start = Clock::now();
    CHECK(CacheStore::open({.directory = directory}).ok());
    samples.push_back(us_since(start));
  }
  return row_of("store restart, 1000 kernels", samples);
}

void write_json(const std::string& path, const std::vector<Row>& rows) {
  nlohmann::json out = {{"bench", "cache"}, {"host", {{"threads", sysconf(_SC_NPROCESSORS_ONLN)}}}};
  for (const Row& row : rows) {
    nlohmann::json line = {{"case", row.name}, {"unit", "us"}, {"ours", row.median}, {"spread", row.spread}};
    line["peers"] = nlohmann::json::object();
    if (row.peer) {
      line["peers"]["plain file"] = *row.peer;
      line["ratio"] = *row.peer / row.median;
    }
    out["rows"].push_back(std::move(line));
  }
  out["summary"] = fmt::format("first verified kernel of a fresh process: {:.0f} us", rows.front().median);
  std::ofstream(path) << out.dump(2) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--first-kernel") == 0) {
    std::printf("%f\n", first_kernel_us(argv[2], argv[3]));
    return 0;
  }
  char name[] = "/tmp/kiln-cache-bench-XXXXXX";
  const std::string directory = mkdtemp(name);
  {
    auto store = CacheStore::open({.directory = directory});
    CHECK(store.ok());
    for (uint32_t kernel = 0; kernel < k_kernels; ++kernel) CHECK((*store)->publish(kernel_batch(kernel)).ok());
  }
  const std::string library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libkiln_reader_bench.so";
  std::vector<Row> rows;
  std::vector<double> starts;
  for (size_t sample = 0; sample < k_samples; ++sample) starts.push_back(warm_start_us(library, directory));
  rows.push_back(row_of("load library, open, first 16 KiB kernel", starts));
  rows.push_back(next_kernel_row("next kernel, 16 KiB", directory, 0));
  rows.push_back(next_kernel_row("next kernel, 256 KiB", directory, 1));
  rows.push_back(restart_row(directory));
  {
    auto store = CacheStore::open({.directory = directory});
    CHECK(store.ok());
    rows.push_back(publish_row(**store, directory));
  }
  std::filesystem::remove_all(directory);

  for (const Row& row : rows) {
    std::printf("%-42s %10.1f us  spread %.2f", row.name.c_str(), row.median, row.spread);
    if (row.peer) std::printf("  plain file %.1f us", *row.peer);
    std::printf("\n");
  }
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0) write_json(argv[2], rows);
  return 0;
}
