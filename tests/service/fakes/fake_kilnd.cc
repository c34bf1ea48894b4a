// kilnd with a store in memory that writes what it published to <cache>/published, one line for each head.

#include <fstream>

#include "service/daemon_main.h"

namespace {

using namespace kiln;

class FakeStore final : public EntryStore {
 public:
  explicit FakeStore(std::string directory) : m_directory(std::move(directory)) {}

  Status publish(const BuildResult& result, const std::vector<uint8_t>&) override {
    std::ofstream file(m_directory + "/published", std::ios::app);
    for (const BuiltHead& head : result.heads) file << head.key.to_hex() << "\n";
    return {};
  }
  Expected<std::string> command(const protocol::Command& command) override {
    if (command.verb == protocol::Verb::show)
      return error(StatusCode::not_found, "no entry {}", command.key.to_short());
    return std::string(protocol::to_string(command.verb));
  }

 private:
  std::string m_directory;
};

}  // namespace

int main(int argc, char** argv) {
  return kiln::daemon_main(
      argc, argv, [](const kiln::Config& config) -> kiln::Expected<std::unique_ptr<kiln::EntryStore>> {
        return std::unique_ptr<kiln::EntryStore>(std::make_unique<FakeStore>(config.cache_directory));
      });
}
