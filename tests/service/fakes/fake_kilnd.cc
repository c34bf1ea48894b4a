// kilnd with a store in memory that writes what it published to <cache>/published, one line for each head. The lines of
// <cache>/untuned are graphs that are not tuned until they are lines of <cache>/tuned.

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "service/daemon_main.h"

namespace {

using namespace kiln;

class FakeStore final : public EntryStore {
 public:
  explicit FakeStore(std::string directory) : m_directory(std::move(directory)) {}
  /// As long as a file says, as a flush to a slow disk takes its time.
  ~FakeStore() override {
    int milliseconds = 0;
    std::ifstream(m_directory + "/close_ms") >> milliseconds;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }

  Status publish(const BuildResult& result, const std::vector<uint8_t>& graph, bool /*replaces*/) override {
    std::ofstream file(m_directory + "/published", std::ios::app);
    for (const BuiltHead& head : result.heads) file << head.key.to_hex() << "\n";
    if (result.raced > 0 && result.is_tuned) {
      std::ofstream(m_directory + "/tuned", std::ios::app) << std::string(graph.begin(), graph.end()) << "\n";
    }
    return {};
  }
  std::vector<std::pair<Digest, Artifact>> needs_of(const Digest& /*artifact*/) override { return {}; }
  Expected<std::optional<UntunedProgram>> next_untuned(const std::unordered_set<Digest>& except) override {
    const std::vector<std::string> tuned = lines("tuned");
    for (const std::string& graph : lines("untuned")) {
      const Digest key = digest_of(graph);
      if (except.contains(key) || std::ranges::find(tuned, graph) != tuned.end()) continue;
      return std::optional(UntunedProgram{key, {graph.begin(), graph.end()}, {"cpu", "x86-64-v3"}});
    }
    return std::optional<UntunedProgram>();
  }
  Expected<std::string> command(const protocol::Command& command) override {
    if (command.verb == protocol::Verb::show)
      return error(StatusCode::not_found, "no entry {}", command.key.to_short());
    return std::string(protocol::to_string(command.verb));
  }

 private:
  std::vector<std::string> lines(const std::string& file) const {
    std::ifstream stream(m_directory + "/" + file);
    std::vector<std::string> found;
    for (std::string line; std::getline(stream, line);) found.push_back(line);
    return found;
  }

  std::string m_directory;
};

}  // namespace

int main(int argc, char** argv) {
  return kiln::daemon_main(
      argc, argv, [](const kiln::Config& config) -> kiln::Expected<std::unique_ptr<kiln::EntryStore>> {
        return std::unique_ptr<kiln::EntryStore>(std::make_unique<FakeStore>(config.cache_directory));
      });
}
