#include "tests/cache/cache_testing.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace kiln::testing {

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "kiln-cache-XXXXXX").string();
  m_path = mkdtemp(name.data());
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(m_path, ignored);
}

std::vector<uint8_t> pattern(uint64_t seed, size_t size) {
  std::vector<uint8_t> bytes(size);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (uint8_t& byte : bytes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<uint8_t>(state);
  }
  return bytes;
}

Digest key_of(uint64_t seed) { return digest_of("key " + std::to_string(seed)); }

size_t plan_size(uint64_t seed) { return seed * 2654435761u % 40'961; }

static Head head_to(const Artifact& artifact, uint64_t seed, uint32_t generation) {
  const std::string canonical = "key " + std::to_string(seed);
  Head head;
  head.key = key_of(seed);
  head.artifact = artifact_digest(artifact);
  head.generation = generation;
  head.canonical_key.assign(canonical.begin(), canonical.end());
  head.provenance = R"({"seed":)" + std::to_string(seed) + "}";
  return head;
}

PublishBatch plan_batch(uint64_t seed, size_t size, uint32_t generation) {
  Artifact plan{ArtifactKind::plan, {}, pattern(seed, size)};
  PublishBatch batch;
  batch.heads.push_back(head_to(plan, seed, generation));
  batch.artifacts.push_back(std::move(plan));
  return batch;
}

PublishBatch code_batch(uint32_t answer, size_t size) {
  std::vector<uint8_t> code(size, 0xcc);
  code[0] = 0xb8;  // mov eax, answer
  std::memcpy(code.data() + 1, &answer, sizeof answer);
  code[5] = 0xc3;  // ret
  PublishBatch batch;
  batch.artifacts.push_back({ArtifactKind::code, {0, 7, 4096, 3, "cpu"}, std::move(code)});
  batch.heads.push_back(head_to(batch.artifacts[0], answer, 0));
  return batch;
}

std::unique_ptr<CacheStore> open_store(const std::string& directory) {
  auto store = CacheStore::open({.directory = directory});
  if (!store.ok()) {
    fmt::print(stderr, "{}\n", store.status().to_string());
    return nullptr;
  }
  return std::move(*store);
}

Reader open_reader(const std::string& directory) { return Reader(kiln_reader_open(directory.c_str())); }

kiln_miss find_plan(kiln_reader* reader, uint64_t seed, size_t size) {
  kiln_view view;
  const kiln_miss miss = kiln_reader_find_key(reader, key_of(seed).bytes.data(), KILN_ARTIFACT_PLAN, &view);
  if (miss != KILN_HIT) return miss;
  const std::vector<uint8_t> expected = pattern(seed, size);
  const bool right =
      view.header.payload_size == expected.size() && std::equal(expected.begin(), expected.end(), view.payload);
  if (!right) {
    fmt::print(stderr, "wrong bytes for seed {}\n", seed);
    std::abort();
  }
  return miss;
}

bool in_other_process(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

PublisherProcess::PublisherProcess(const std::string& directory, uint64_t first_seed, uint64_t count, Manner manner) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  const std::string first = std::to_string(first_seed), many = std::to_string(count);
  constexpr const char* k_manners[] = {"close", "exit", "insist"};
  const char* arguments[] = {KILN_CACHE_PUBLISHER,
                             directory.c_str(),
                             first.c_str(),
                             many.c_str(),
                             k_manners[static_cast<size_t>(manner)],
                             nullptr};
  if (posix_spawn(&m_child, KILN_CACHE_PUBLISHER, &actions, nullptr, const_cast<char**>(arguments), environ) != 0) {
    std::abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  m_output = ends[0];
}

PublisherProcess::~PublisherProcess() {
  if (m_child > 0) kill();
}

bool PublisherProcess::read_some() {
  char buffer[4096];
  const ssize_t size = read(m_output, buffer, sizeof buffer);
  if (size > 0) m_text.append(buffer, static_cast<size_t>(size));
  return size > 0;
}

void PublisherProcess::await_first() { read_some(); }

void PublisherProcess::await_refusal() {
  while (m_text.find("refused\n") == std::string::npos && read_some()) continue;
}

std::vector<uint64_t> PublisherProcess::kill() {
  ::kill(m_child, SIGKILL);
  return drain();
}

std::vector<uint64_t> PublisherProcess::wait() { return drain(); }

std::vector<uint64_t> PublisherProcess::drain() {
  while (read_some()) continue;
  close(m_output);
  waitpid(m_child, nullptr, 0);
  m_child = -1;
  std::vector<uint64_t> seeds;
  std::istringstream lines(m_text);
  for (std::string line; std::getline(lines, line);) {
    if (line != "refused") seeds.push_back(std::stoull(line));
  }
  return seeds;
}

std::vector<std::string> files_below(const std::string& directory) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  return paths;
}

}  // namespace kiln::testing
