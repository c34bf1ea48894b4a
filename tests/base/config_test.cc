#include "base/config/config.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/config/directories.h"

namespace kiln {
namespace {

class ConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/kiln-config-XXXXXX";
    m_directory = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(m_directory); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(m_directory + "/" + name) << text;
    return m_directory + "/" + name;
  }

  std::string m_directory;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(ConfigTest, each_layer_beats_the_one_below_and_says_so) {
  ConfigSources sources;
  sources.system_file =
      write("system.yaml", "daemon: {idle_exit_ms: 1, drain_timeout_ms: 1, start_timeout_ms: 1}\nworker: {count: 1}");
  sources.user_file = write("user.yaml", "daemon:\n  idle_exit_ms: 2\n  drain_timeout_ms: 2\n  start_timeout_ms: 2\n");
  sources.environment = {{"KILN_DAEMON_IDLE_EXIT_MS", "3"}, {"KILN_DAEMON_DRAIN_TIMEOUT_MS", "3"}, {"HOME", "/x"}};
  sources.flags = {{"daemon.idle_exit_ms", "4"}};

  const auto config = load_config(sources);

  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->values.daemon_idle_exit_ms, 4U);
  EXPECT_EQ(config->values.daemon_drain_timeout_ms, 3U);
  EXPECT_EQ(config->values.daemon_start_timeout_ms, 2U);
  EXPECT_EQ(config->values.worker_count, 1U);
  EXPECT_EQ(config->values.log_files, Config{}.log_files);
  EXPECT_EQ(config->origins.at("daemon.idle_exit_ms").layer, ConfigLayer::flag);
  EXPECT_EQ(config->origins.at("daemon.drain_timeout_ms").layer, ConfigLayer::environment);
  EXPECT_EQ(config->origins.at("daemon.drain_timeout_ms").where, "KILN_DAEMON_DRAIN_TIMEOUT_MS");
  EXPECT_EQ(config->origins.at("daemon.start_timeout_ms").layer, ConfigLayer::user_file);
  EXPECT_EQ(config->origins.at("daemon.start_timeout_ms").where, m_directory + "/user.yaml:4");
  EXPECT_EQ(config->origins.at("worker.count").layer, ConfigLayer::system_file);
  EXPECT_EQ(config->origins.at("log.files").layer, ConfigLayer::defaults);
}

TEST_F(ConfigTest, short_variables_set_their_keys) {
  ConfigSources sources{.system_file = ""};
  sources.environment = {{"KILN_CACHE_DIR", "/a"}, {"KILN_NO_DAEMON", "1"}, {"KILN_DISABLE", "1"}};
  const auto config = load_config(sources);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->values.cache_directory, "/a");
  EXPECT_FALSE(config->values.daemon_use);
  EXPECT_TRUE(config->values.disable);
}

TEST_F(ConfigTest, folders_of_libraries_come_from_files_and_the_environment) {
  ConfigSources sources{.system_file = ""};
  sources.user_file = write("user.yaml", "libraries:\n  path: /a:/b\n");
  EXPECT_EQ(load_config(sources)->values.libraries_path, "/a:/b");
  sources.environment = {{"KILN_LIBRARIES_PATH", "/c"}};
  EXPECT_EQ(load_config(sources)->values.libraries_path, "/c");
}

TEST_F(ConfigTest, an_unknown_key_is_refused_with_the_nearest_name) {
  ConfigSources sources{.system_file = ""};
  sources.user_file = write("user.yaml", "log: {level: warn}\ncache:\n  directry: /x\n");
  auto status = load_config(sources).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("user.yaml:3: unknown key 'cache.directry', the nearest is 'cache.directory'"),
            std::string::npos)
      << status.message();

  status = load_config({.system_file = "", .flags = {{"worker.cuont", "1"}}}).status();
  EXPECT_NE(status.message().find("'worker.count'"), std::string::npos) << status.message();
}

TEST_F(ConfigTest, a_foreign_variable_turns_nothing_off_and_a_misspelt_one_is_named) {
  const auto foreign =
      load_config({.system_file = "", .environment = {{"KILN_TEAM", "x"}, {"KILN_BUILD_FARM_ID", "7"}}});
  ASSERT_TRUE(foreign.ok()) << foreign.status().to_string();
  EXPECT_EQ(foreign->notice, "");
  const auto misspelt = load_config({.system_file = "", .environment = {{"KILN_DAEMON_IDLE_EXIT", "1"}}});
  ASSERT_TRUE(misspelt.ok()) << misspelt.status().to_string();
  EXPECT_NE(misspelt->notice.find("'KILN_DAEMON_IDLE_EXIT_MS'"), std::string::npos) << misspelt->notice;
}

TEST_F(ConfigTest, yes_and_no_have_any_case) {
  for (const char* no : {"0", "false", "False", "NO", "off", ""}) {
    const auto config = load_config({.system_file = "", .environment = {{"KILN_DISABLE", no}}});
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    EXPECT_FALSE(config->values.disable) << no;
  }
  EXPECT_TRUE(load_config({.system_file = "", .environment = {{"KILN_DISABLE", "True"}}})->values.disable);
}

TEST_F(ConfigTest, values_of_the_wrong_kind_are_refused) {
  for (const char* text :
       {"worker: {count: -1}", "worker: {count: many}", "worker: {count: 1.5}", "disable: perhaps",
        "worker: {count: 99999999999999999999}", "cache: {directory: [a, b]}", "[1, 2]", "just words", "a: &a [*a]",
        "worker: {count: {count: {count: {count: {count: 1}}}}}", "{", "\t- :"}) {
    LoadedConfig config;
    EXPECT_EQ(apply_yaml(text, "test", ConfigLayer::user_file, config).code(), StatusCode::invalid_argument) << text;
  }
}

TEST_F(ConfigTest, a_file_named_by_the_user_must_exist_and_the_usual_ones_need_not) {
  EXPECT_TRUE(load_config({.system_file = "/nowhere", .user_file = "/nowhere/too"}).ok());
  EXPECT_EQ(load_config({.system_file = "", .user_file = "/nowhere", .user_file_must_exist = true}).status().code(),
            StatusCode::not_found);
}

TEST_F(ConfigTest, the_shipped_file_shows_every_key_with_its_default_and_sentence) {
  const std::string path = KILN_SOURCE_DIR "/configs/kiln.yaml";
  LoadedConfig shipped;
  ASSERT_TRUE(apply_yaml(read_file(path), path, ConfigLayer::user_file, shipped).ok());
  EXPECT_EQ(shipped.values, Config{});
  EXPECT_EQ(shipped.origins.size(), config_keys().size());
  const std::string text = read_file(path);
  for (const ConfigKey& key : config_keys()) {
    std::string comment = "# " + std::string(key.sentence);
    if (!key.unit.empty()) comment += " [" + std::string(key.unit) + "]";
    EXPECT_NE(text.find(comment + "\n"), std::string::npos) << key.name << ": " << comment;
  }
}

TEST_F(ConfigTest, a_cache_on_a_network_file_system_gives_way_to_one_of_this_host_unless_allowed) {
  ConfigSources sources;
  sources.flags = {{"cache.directory", m_directory + "/far"}};
  sources.network_file_system_of = [](const std::string& path) -> std::string_view {
    return path.ends_with("/far") ? "nfs" : "";
  };
  const auto moved = load_config(sources);
  ASSERT_TRUE(moved.ok());
  EXPECT_EQ(moved->values.cache_directory, local_cache_directory(m_directory + "/far"));
  EXPECT_NE(moved->notice.find("/far is on nfs"), std::string::npos) << moved->notice;
  // The daemon is told the directory it was moved to: it must not be moved again.
  sources.flags = {{"cache.directory", moved->values.cache_directory}};
  EXPECT_EQ(load_config(sources)->values.cache_directory, moved->values.cache_directory);

  sources.flags = {{"cache.directory", m_directory + "/far"}, {"cache.allow_network", "true"}};
  EXPECT_EQ(load_config(sources)->values.cache_directory, m_directory + "/far");
  EXPECT_EQ(load_config(sources)->notice, "");
}

TEST(FileSystem, NetworkOnesAreKnownByTheirNumberAndLocalOnesAreNot) {
  EXPECT_EQ(network_file_system(0x6969), "nfs");
  EXPECT_EQ(network_file_system(0x0bd00bd0), "lustre");
  for (const uint64_t local : {0xef53U /* ext4 */, 0x01021994U /* tmpfs */, 0x58465342U /* xfs */,
                               0x9123683eU /* btrfs */, 0x794c7630U /* overlay */}) {
    EXPECT_EQ(network_file_system(local), "") << std::hex << local;
  }
}

TEST_F(ConfigTest, one_cache_directory_has_one_socket_whatever_its_spelling) {
  std::filesystem::create_directories(m_directory + "/cache");
  std::filesystem::create_symlink(m_directory + "/cache", m_directory + "/link");
  const auto socket = socket_path(m_directory + "/cache");
  ASSERT_TRUE(socket.ok());
  EXPECT_EQ(*socket_path(m_directory + "/link"), *socket);
  EXPECT_EQ(*socket_path(m_directory + "/./link/"), *socket);
  EXPECT_NE(*socket_path(m_directory + "/other"), *socket);
}

TEST_F(ConfigTest, whoever_sees_the_cache_sees_its_socket_whatever_its_runtime_directory) {
  const std::string before = *socket_path(m_directory + "/cache");
  setenv("XDG_RUNTIME_DIR", m_directory.c_str(), 1);
  EXPECT_EQ(*socket_path(m_directory + "/cache"), before);
  unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(before, canonical_path(m_directory + "/cache") + "/kilnd.sock");
}

TEST_F(ConfigTest, a_home_that_is_none_gives_directories_that_can_be_made) {
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/", 1);
  EXPECT_TRUE(default_cache_directory().starts_with("/tmp/kiln-")) << default_cache_directory();
  setenv("HOME", before.c_str(), 1);
}

TEST_F(ConfigTest, a_deep_cache_directory_still_gives_a_socket_that_fits) {
  const auto socket = socket_path(m_directory + "/" + std::string(100, 'd'));
  ASSERT_TRUE(socket.ok());
  EXPECT_LT(socket->size(), sizeof(sockaddr_un::sun_path));
  EXPECT_TRUE(socket->starts_with("/tmp/kiln-"));
}

TEST_F(ConfigTest, a_directory_that_others_can_write_or_swap_is_refused) {
  const std::string open = m_directory + "/open";
  std::filesystem::create_directory(open);
  chmod(open.c_str(), 0777);
  EXPECT_EQ(make_private_directory(open).code(), StatusCode::permission_denied);
  std::filesystem::create_directory_symlink("/tmp", m_directory + "/link");
  EXPECT_EQ(make_private_directory(m_directory + "/link").code(), StatusCode::permission_denied);

  const std::string fresh = m_directory + "/a/b";
  ASSERT_TRUE(make_private_directory(fresh).ok());
  struct stat info{};
  ASSERT_EQ(stat(fresh.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
}

}  // namespace
}  // namespace kiln
