// Each subcommand as people and scripts use it: the program itself, a real daemon, a cache of the test's own.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* k_symbolic_text = R"(graph(%x: f32[s0, 8]) {
  %y = exp(%x)
  return %y
}
)";

// ---- usage

TEST_F(Cli, WrongArgumentsAreExitTwoAndSayWhatToDo) {
  const std::vector<std::vector<std::string>> wrong = {{},
                                                       {"staus"},
                                                       {"show"},
                                                       {"show", "xyz"},
                                                       {"daemon"},
                                                       {"daemon", "sotp"},
                                                       {"ls", "--kind", "cod"},
                                                       {"gc", "--size", "many"},
                                                       {"run"},
                                                       {"run", "a", "--threads", "0"},
                                                       {"reduce"},
                                                       {"warm"},
                                                       {"warm", "a", "--torch", "b:c"},
                                                       {"status", "--nothing"},
                                                       {"--set", "cache.size", "status"},
                                                       {"pin", "g"}};
  for (const auto& arguments : wrong) {
    const CliResult result = kiln(arguments);
    EXPECT_EQ(result.exit_status, 2) << testing::PrintToString(arguments) << result.out << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
  EXPECT_THAT(kiln({"staus"}).err, HasSubstr("unknown command 'staus', the nearest is 'status'"));
  EXPECT_THAT(kiln({"run"}).err, HasSubstr("kiln run --help"));
}

TEST_F(Cli, HelpGoesToStdout) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"warm", "--help"},
                                                    {"daemon", "logs", "--help"},
                                                    {"help"},
                                                    {"help", "pack", "create"}}) {
    const CliResult result = kiln(arguments);
    EXPECT_EQ(result.exit_status, 0);
    EXPECT_THAT(result.out, HasSubstr("Usage:"));
  }
}

TEST_F(Cli, AWrongConfigurationIsExitTwoAndNamesFileLineAndNearestKey) {
  m_world.set("KILN_CONFIG", m_world.write("wrong.yaml", "cache:\n  directry: /x\n"));
  const CliResult result = kiln({"status"});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err, HasSubstr("wrong.yaml:2: unknown key 'cache.directry', the nearest is 'cache.directory'"));
}

TEST_F(Cli, HelpOfACommandIsTheSameBothWays) {
  EXPECT_EQ(kiln({"help", "daemon", "logs"}).out, kiln({"daemon", "logs", "--help"}).out);
  EXPECT_EQ(kiln({"help", "staus"}).exit_status, 2);
}

TEST_F(Cli, VersionIsOneLineOfTheProgramsOwn) {
  const CliResult result = kiln({"--version"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.out, "kiln " + kiln({"version", "--json"}).json().at("version").get<std::string>() + "\n");
}

TEST_F(Cli, VersionNamesWhatIsSpokenAndRead) {
  const auto versions = kiln({"version", "--json"}).json();
  for (const char* name : {"version", "generator", "protocol", "wire_graph", "artifact_format", "index_format"}) {
    EXPECT_TRUE(versions.contains(name)) << name;
  }
}

// ---- the daemon

TEST_F(Cli, StatusWithoutADaemonSaysSoAndFailsOnlyWhenRequired) {
  const CliResult plain = kiln({"status"});
  EXPECT_EQ(plain.exit_status, 0);
  EXPECT_THAT(plain.out, HasSubstr("not running"));
  EXPECT_EQ(kiln({"status", "--json"}).json()["running"], false);
  EXPECT_EQ(kiln({"status", "--require"}).exit_status, 3);
  EXPECT_EQ(kiln({"stats"}).exit_status, 3);
  EXPECT_FALSE(std::filesystem::exists(m_world.cache())) << "looking made something";
}

TEST_F(Cli, TheDaemonStartsOnceAndStopsForGood) {
  const auto started = kiln({"daemon", "start", "--json"}).json();
  EXPECT_EQ(started["state"], "started");
  const auto again = kiln({"daemon", "start", "--json"}).json();
  EXPECT_EQ(again["state"], "already running");
  EXPECT_EQ(again["pid"], started["pid"]);
  EXPECT_EQ(kiln({"status", "--require"}).exit_status, 0);
  EXPECT_EQ(kiln({"status", "--json"}).json()["pid"], started["pid"]);

  EXPECT_NE(kiln({"daemon", "restart", "--json"}).json()["pid"], started["pid"]);
  EXPECT_EQ(kiln({"daemon", "stop"}).out, "stopped\n");
  EXPECT_EQ(kiln({"status", "--require"}).exit_status, 3);
  const CliResult idle = kiln({"daemon", "stop"});
  EXPECT_EQ(idle.exit_status, 0);
  EXPECT_EQ(idle.out, "not running\n");
}

TEST_F(Cli, LogsAreTheDaemonsLastLines) {
  EXPECT_EQ(kiln({"daemon", "logs"}).exit_status, 1);
  kiln({"daemon", "start"});
  kiln({"daemon", "stop"});
  EXPECT_THAT(kiln({"daemon", "logs"}).out, HasSubstr("serving " + m_world.cache().string()));
  const auto lines = kiln({"daemon", "logs", "-n", "1", "--json"}).json()["lines"];
  ASSERT_EQ(lines.size(), 1);
  EXPECT_THAT(lines[0].get<std::string>(), HasSubstr("left"));
}

TEST_F(Cli, WithTheDaemonTurnedOffOnlyWhatNeedsNoneWorks) {
  m_world.set("KILN_NO_DAEMON", "1");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"ls"},
                                                    {"show", "ab"},
                                                    {"verify"},
                                                    {"gc"},
                                                    {"clear"},
                                                    {"pin", "ab"},
                                                    {"explain"},
                                                    {"daemon", "start"},
                                                    {"run", graph(7)},
                                                    {"warm", graph(7)}}) {
    const CliResult result = kiln(arguments);
    EXPECT_EQ(result.exit_status, 3) << testing::PrintToString(arguments) << result.err;
  }
  EXPECT_THAT(kiln({"ls"}).err, HasSubstr("the daemon is turned off (KILN_NO_DAEMON)"));
  const auto failure = kiln({"ls", "--json"}).json();
  EXPECT_EQ(failure["error"]["code"], "unavailable");
  EXPECT_EQ(kiln({"status"}).exit_status, 0);
  EXPECT_EQ(kiln({"config", "show"}).exit_status, 0);
  EXPECT_EQ(kiln({"doctor"}).exit_status, 0);
}

TEST_F(Cli, StopWorksAlsoWhereDaemonsAreTurnedOff) {
  kiln({"daemon", "start"});
  m_world.set("KILN_NO_DAEMON", "1");
  EXPECT_EQ(kiln({"daemon", "stop"}).out, "stopped\n");
}

TEST_F(Cli, AMissingDaemonProgramIsExitThree) {
  m_world.set("KILN_DAEMON_PATH", "/nowhere/kilnd");
  const CliResult result = kiln({"ls"});
  EXPECT_EQ(result.exit_status, 3);
  EXPECT_THAT(result.err, HasSubstr("/nowhere/kilnd"));
  const auto doctor = kiln({"doctor", "--json"});
  EXPECT_EQ(doctor.exit_status, 1);
  EXPECT_EQ(doctor.json()["healthy"], false);
}

// ---- configuration

TEST_F(Cli, ConfigShowsEachValueWithItsOrigin) {
  const std::string file = m_world.write("config.yaml", "worker:\n  count: 3\n");
  const auto values =
      kiln({"config", "show", "--origin", "--json", "--config", file, "--set", "log.level=debug"}).json()["values"];
  EXPECT_EQ(values["worker.count"]["value"], 3);
  EXPECT_EQ(values["worker.count"]["where"], file + ":2");
  EXPECT_EQ(values["cache.directory"]["layer"], "environment");
  EXPECT_EQ(values["log.level"]["layer"], "flag");
  EXPECT_EQ(values["disable"]["layer"], "default");
  EXPECT_THAT(kiln({"config", "show", "--origin"}).out, HasSubstr("KILN_CACHE_DIR"));
  EXPECT_THAT(kiln({"config", "path", "--config", file}).out, HasSubstr(file));
}

// ---- filling

TEST_F(Cli, WhatWasWarmedRunsWithTheDaemonStoppedAndNothingCompiled) {
  const auto warmed = kiln({"warm", graph(37), graph(41), "--json"}).json();
  EXPECT_EQ(warmed["warmed"], 2);
  EXPECT_GT(warmed["compilations"], 0);
  EXPECT_EQ(warmed["graphs"][0]["result"], "built");
  kiln({"daemon", "stop"});

  m_world.set("KILN_NO_DAEMON", "1");
  for (const int rows : {37, 41}) {
    const CliResult result = kiln({"run", graph(rows), "--check", "--threads", "2", "--repeat", "3", "--json"});
    ASSERT_EQ(result.exit_status, 0) << result.err;
    const auto run = result.json();
    EXPECT_EQ(run["found"], "mapped hit");
    EXPECT_EQ(run["compilations"], 0);
    EXPECT_EQ(run["outputs"][0]["right"], true);
    EXPECT_LT(run["outputs"][0]["max_error"], 1e-4);
    EXPECT_GT(run["outputs"][0]["compared"], 0);
  }
  EXPECT_EQ(kiln({"warm", graph(37), "--json"}).json()["graphs"][0]["result"], "mapped hit");
}

TEST_F(Cli, WarmingSomeOfSeveralIsExitFive) {
  const std::string bad = m_world.write("bad.kiln", "graph(%x: f32[4]) { %y = adds(%x, %x) return %y }");
  const CliResult some = kiln({"warm", bad, graph(5)});
  EXPECT_EQ(some.exit_status, 5) << some.err;
  EXPECT_THAT(some.err, HasSubstr("bad.kiln: 1:26: unknown op 'adds', nearest is 'add'"));
  EXPECT_EQ(kiln({"warm", bad}).exit_status, 1);
  EXPECT_EQ(kiln({"warm", m_world.directory() / "none.kiln"}).exit_status, 1);
}

TEST_F(Cli, WarmBuildsForTheTargetsNamed) {
  const auto warmed = kiln({"warm", graph(9), "--target", "x86-64-v2", "--json"}).json();
  EXPECT_EQ(warmed["graphs"][0]["result"], "built");
  EXPECT_EQ(kiln({"ls", "--target", "x86-64-v2", "--kind", "program", "--json"}).json()["matched"], 1);
  EXPECT_EQ(kiln({"ls", "--target", "x86-64-v9", "--json"}).json()["matched"], 0);
  const CliResult unknown = kiln({"warm", graph(9), "--target", "x86-64-v9"});
  EXPECT_EQ(unknown.exit_status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("no target is called x86-64-v9"));
}

TEST_F(Cli, WhatIsWarmedForATargetThatIsNotThereIsCheckedWhereItIsAndThenAMappedHit) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this host is none of x86-64-v3";
  m_world.set("KILN_CPU_FEATURES", "x86-64-v2");
  const auto warmed = kiln({"warm", graph(9), "--target", "x86-64-v3", "--json"}).json();
  EXPECT_EQ(warmed["graphs"][0]["result"], "built");
  EXPECT_THAT(kiln({"ls", "--target", "x86-64-v3", "--kind", "program"}).out, HasSubstr("unchecked"));
  kiln({"daemon", "stop"});

  m_world.set("KILN_CPU_FEATURES", "x86-64-v3");
  const CliResult first = kiln({"run", graph(9), "--check", "--json"});
  ASSERT_EQ(first.exit_status, 0) << first.err;
  EXPECT_EQ(first.json()["found"], "checked");
  EXPECT_EQ(first.json()["compilations"], 0);
  kiln({"daemon", "stop"});
  m_world.set("KILN_NO_DAEMON", "1");
  EXPECT_EQ(kiln({"run", graph(9), "--check", "--json"}).json()["found"], "mapped hit");
}

TEST_F(Cli, ReduceLeavesOfAGraphWhatCannotBeHadForTheSameReason) {
  EXPECT_THAT(kiln({"reduce", graph(9)}).err, HasSubstr("comes out right: there is nothing to reduce"));
  const std::string out = m_world.write("smaller.kiln", "");
  // Heads longer than any kernel of attention takes.
  const std::string file = m_world.write("heads.kiln", R"(graph(%x: f32[1, 2, 4, 1025], %w: f32[1025, 7]) {
  %q = exp(%x)
  %a, %l = attention(%q, %x, %x, none) {causal = false, causal_offset = 0, scale = 0.5}
  %p = matmul(%a, %w)
  %s = tanh(%p)
  return %s, %q
}
)");
  const CliResult reduced = kiln({"reduce", file, "--out", out});
  ASSERT_EQ(reduced.exit_status, 0) << reduced.err;
  EXPECT_THAT(reduced.out, HasSubstr("1 of 4 nodes"));
  const CliResult again = kiln({"run", out});
  EXPECT_NE(again.exit_status, 0);
  EXPECT_THAT(again.err, HasSubstr("at most 1024"));
}

TEST_F(Cli, SymbolsAreBoundByName) {
  const std::string file = m_world.write("symbolic.kiln", k_symbolic_text);
  const CliResult run = kiln({"run", file, "--symbols", "s0=5", "--check", "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  EXPECT_EQ(run.json()["outputs"][0]["type"], "f32[5, 8]");
  EXPECT_THAT(kiln({"run", file}).err, HasSubstr("symbol s0 has no value"));
  EXPECT_THAT(kiln({"run", file, "--symbols", "s1=5"}).err, HasSubstr("no symbol s1, the nearest is s0"));
  EXPECT_THAT(kiln({"run", file, "--symbols", "s0=x"}).err, HasSubstr("expected name=extent"));
}

TEST_F(Cli, InputsComeFromFilesByNameOrNumber) {
  const std::string file =
      m_world.write("add.kiln", "graph(%a: f32[4], %b: f32[4]) {\n  %c = add(%a, %b)\n  return %c\n}\n");
  const std::vector<float> ones = {1, 2, 3, 4};
  const std::string raw = m_world.write("ones.raw", {reinterpret_cast<const char*>(ones.data()), 16});
  const CliResult right = kiln({"run", "--input", "a=" + raw, "--input", "1=zeros", file, "--check"});
  EXPECT_EQ(right.exit_status, 0) << right.err;
  const std::string cut = m_world.write("cut.raw", "abc");
  EXPECT_THAT(kiln({"run", file, "--input", "a=" + cut}).err, HasSubstr("has 3 bytes, expected 16"));
  EXPECT_THAT(kiln({"run", file, "--input", "c=zeros"}).err, HasSubstr("no input c"));
}

TEST_F(Cli, AnInputThatIsNoGraphFailsWithItsPlace) {
  EXPECT_THAT(kiln({"run", m_world.write("a.kiln", "graph(")}).err, HasSubstr("a.kiln: 1:"));
  EXPECT_THAT(kiln({"run", m_world.write("b.kiln", std::string("\0\1\2\3", 4))}).err, HasSubstr("b.kiln: "));
  EXPECT_EQ(kiln({"run", m_world.directory()}).exit_status, 1);
}

// ---- entries

TEST_F(Cli, EntriesAreListedShownAndNamedByPrefix) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const auto all = kiln({"ls", "--json"}).json();
  EXPECT_GE(all["entries"].size(), 4);  // a program, a plan, some kernels
  EXPECT_EQ(all["matched"], all["entries"].size());
  EXPECT_EQ(kiln({"ls", "--limit", "1", "--json"}).json()["entries"].size(), 1);
  EXPECT_THAT(kiln({"ls"}).out, HasSubstr("program"));

  const std::string key = newest_key("program");
  const auto shown = kiln({"show", key.substr(0, 12), "--json"}).json()["entry"];
  EXPECT_EQ(shown["heads"][0]["key"], key);
  EXPECT_EQ(shown["heads"][0]["key_parts"]["level"], "program");
  const std::string digest = shown["digest"];
  EXPECT_EQ(kiln({"show", digest, "--json"}).json()["entry"]["digest"], digest);
  EXPECT_THAT(kiln({"show", key}).out, HasSubstr(key));
}

TEST_F(Cli, AnUnknownKeyNamesTheNearest) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string key = newest_key("program");
  std::string wrong = key.substr(0, 12);
  wrong[5] = wrong[5] == '0' ? '1' : '0';
  const CliResult result = kiln({"show", wrong});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.err, HasSubstr("no entry is called " + wrong + ", the nearest is " + key.substr(0, 16)));
  EXPECT_EQ(kiln({"show", wrong, "--json"}).json()["error"]["code"], "not_found");
}

TEST_F(Cli, AnAmbiguousPrefixIsRefused) {
  for (int rows = 5; rows < 9; ++rows) ASSERT_EQ(kiln({"warm", graph(rows)}).exit_status, 0);
  // More than sixteen names: two of them share their first digit.
  const auto entries = kiln({"ls", "--json"}).json()["entries"];
  ASSERT_GT(entries.size() * 2, 16);
  size_t refused = 0;
  for (const char digit : std::string("0123456789abcdef")) {
    refused += kiln({"show", std::string(1, digit)}).err.find("more than one entry") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(refused, 0);
}

TEST_F(Cli, PinnedEntriesSurviveCollection) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string key = newest_key("program");
  EXPECT_EQ(kiln({"pin", key.substr(0, 12), "--json"}).json()["pinned"], true);
  EXPECT_EQ(kiln({"show", key, "--json"}).json()["entry"]["pinned"], true);
  EXPECT_THAT(kiln({"gc", "--size", "1"}).err, HasSubstr("what is pinned takes"));
  ASSERT_EQ(kiln({"gc", "--size", "16K"}).exit_status, 0);
  EXPECT_EQ(kiln({"show", key}).exit_status, 0);
  const auto kept = kiln({"ls", "--json"}).json()["entries"];
  EXPECT_GE(kept.size(), 3) << "the program, its plan, its code";
  for (const auto& entry : kept) EXPECT_EQ(entry["pinned"], true) << entry;

  EXPECT_EQ(kiln({"unpin", key.substr(0, 12)}).exit_status, 0);
  const auto dropped = kiln({"gc", "--size", "0", "--json"}).json();
  EXPECT_EQ(dropped["before"]["artifacts"], kept.size());
  EXPECT_EQ(dropped["after"]["artifacts"], 0);
}

TEST_F(Cli, ClearDropsEverything) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const auto cleared = kiln({"clear", "--json"}).json();
  EXPECT_GT(cleared["before"]["artifacts"], 0);
  EXPECT_EQ(cleared["after"]["artifacts"], 0);
  EXPECT_EQ(kiln({"ls", "--json"}).json()["matched"], 0);
}

TEST_F(Cli, DamageIsExitFourAndGoneAfterwards) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  EXPECT_EQ(kiln({"verify"}).exit_status, 0);
  kiln({"daemon", "stop"});
  size_t flipped = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(m_world.cache())) {
    if (file.path().extension() != ".sst" || file.is_symlink()) continue;
    std::filesystem::permissions(file.path(), std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(4096 + 64);  // past the first page: a payload
    bytes.put('\x5a');
    bytes.put('\xa5');
    flipped += bytes.good() ? 1 : 0;
    break;
  }
  ASSERT_EQ(flipped, 1);
  const CliResult damaged = kiln({"verify", "--json"});
  EXPECT_EQ(damaged.exit_status, 4) << damaged.err;
  EXPECT_GE(damaged.json()["damaged"].size(), 1);
  EXPECT_EQ(kiln({"verify"}).exit_status, 0);
  EXPECT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
}

TEST_F(Cli, ExplainNamesThePartThatDiffers) {
  EXPECT_THAT(kiln({"explain"}).err, HasSubstr("no program yet"));
  ASSERT_EQ(kiln({"warm", graph(6), "--target", "x86-64-v2"}).exit_status, 0);
  const std::string older = newest_key("program");
  EXPECT_TRUE(kiln({"explain", older, "--json"}).json()["nearest"].is_null());

  ASSERT_EQ(kiln({"warm", graph(6), "--target", "x86-64-v3"}).exit_status, 0);
  const auto newest = kiln({"explain", "--json"}).json();
  EXPECT_EQ(newest["nearest"]["key"], older);
  ASSERT_EQ(newest["nearest"]["differs"].size(), 1);
  EXPECT_EQ(newest["nearest"]["differs"][0]["part"], "target");
  EXPECT_EQ(newest["nearest"]["differs"][0]["ours"], "x86-64-v3");
  EXPECT_EQ(newest["nearest"]["differs"][0]["theirs"], "x86-64-v2");

  const std::string newer = newest["key"];
  const auto both = kiln({"explain", older.substr(0, 12), newer.substr(0, 12), "--json"}).json();
  EXPECT_EQ(both["key"], older);
  EXPECT_EQ(both["nearest"]["key"], newer);
  EXPECT_THAT(kiln({"explain"}).out, HasSubstr("made for another instruction set"));
}

TEST_F(Cli, EntriesHaveNamesThatPeopleKnow) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string name = "2 matmul, gelu, softmax -> f32[6, 10]";
  EXPECT_THAT(kiln({"ls", "--kind", "program"}).out, HasSubstr("  " + name + "\n"));
  EXPECT_THAT(kiln({"ls", "--kind", "plan"}).out, HasSubstr(" -> f32[6, 10]\n"));
  EXPECT_THAT(kiln({"ls", "--kind", "code"}).out, HasSubstr("  gemm_f32_6x33x65_nn"));
  EXPECT_THAT(kiln({"show", newest_key("program")}).out, HasSubstr("name               " + name + "\n"));
  EXPECT_EQ(kiln({"explain", "--json"}).json()["name"], name);
}

TEST_F(Cli, ExplainOfAGraphSaysWhetherItWouldHit) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  EXPECT_EQ(kiln({"explain", graph(6), "--json"}).json()["cached"], true);
  const auto missing = kiln({"explain", graph(8), "--json"}).json();
  EXPECT_EQ(missing["cached"], false);
  EXPECT_THAT(missing["miss"].get<std::string>(), HasSubstr("absent"));
  EXPECT_EQ(missing["nearest"]["differs"][0]["part"], "graph");
}

TEST_F(Cli, ExplainSaysWhatIsOtherwiseInTheGraph) {
  const auto norm = [](int rows, const char* eps) {
    return "graph(%x: f32[" + std::to_string(rows) + R"(, 65], %w: f32[65], %b: f32[65]) {
  %y, %m, %r = layer_norm(%x, %w, %b) {normalized_rank = 1, eps = )" +
           eps + R"(}
  return %y
}
)";
  };
  const std::string file = m_world.write("norm.kiln", norm(64, "1e-06"));
  const CliResult warmed = kiln({"warm", file});
  ASSERT_EQ(warmed.exit_status, 0) << warmed.err << warmed.out;
  EXPECT_THAT(kiln({"explain", m_world.write("rows.kiln", norm(65, "1e-06"))}).out,
              HasSubstr("input 0: f32[65, 65] was f32[64, 65]"));
  EXPECT_THAT(kiln({"explain", m_world.write("eps.kiln", norm(64, "1e-05"))}).out, HasSubstr("eps 1e-05 was 1e-06"));
  // Also between two programs of the cache, and the nearest is the one that differs least.
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  ASSERT_EQ(kiln({"warm", m_world.write("rows.kiln", norm(65, "1e-06"))}).exit_status, 0);
  const auto nearest = kiln({"explain", "--json"}).json()["nearest"];
  EXPECT_EQ(nearest["graph"][0], "input 0: f32[65, 65] was f32[64, 65]");
}

TEST_F(Cli, APinnedProgramKeepsItsPlanAndCode) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string program = newest_key("program");
  ASSERT_EQ(kiln({"pin", program}).exit_status, 0);
  ASSERT_EQ(kiln({"warm", graph(8)}).exit_status, 0);
  kiln({"gc", "--size", "1K"});  // fails: what is pinned is larger
  EXPECT_EQ(kiln({"explain", graph(6), "--json"}).json()["cached"], true);
  EXPECT_EQ(kiln({"explain", graph(8), "--json"}).json()["cached"], false);
  ASSERT_EQ(kiln({"unpin", program}).exit_status, 0);
  const CliResult freed = kiln({"gc", "--size", "1K"});
  EXPECT_EQ(freed.exit_status, 0) << freed.err;
  EXPECT_EQ(kiln({"explain", graph(6), "--json"}).json()["cached"], false);
}

TEST_F(Cli, RestartReplacesADaemonThatHangs) {
  const auto first = kiln({"daemon", "start", "--json"}).json()["pid"].get<pid_t>();
  ::kill(first, SIGSTOP);
  const CliResult restarted = kiln({"daemon", "restart", "--json", "--set", "daemon.start_timeout_ms=2000"});
  EXPECT_EQ(restarted.exit_status, 0) << restarted.err;
  EXPECT_NE(restarted.json()["pid"], first);
}

TEST_F(Cli, StopSignalsNobodyButTheDaemonThatHoldsTheCache) {
  std::filesystem::create_directory(m_world.cache());
  std::filesystem::permissions(m_world.cache(), std::filesystem::perms::owner_all);
  const pid_t bystander = fork();
  if (bystander == 0) {
    pause();
    _exit(0);
  }
  const std::string path = m_world.cache() / "kilnd.lock";
  const int lock = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(lock, LOCK_EX | LOCK_NB), 0);
  const std::string holder = std::to_string(bystander) + " 1 1\n";  // its number, in another container
  ASSERT_EQ(write(lock, holder.data(), holder.size()), static_cast<ssize_t>(holder.size()));
  const CliResult result = kiln({"daemon", "stop"});
  EXPECT_NE(result.exit_status, 0);
  EXPECT_THAT(result.err, HasSubstr("another container"));
  EXPECT_EQ(waitpid(bystander, nullptr, WNOHANG), 0) << "it lives";
  kill(bystander, SIGKILL);
  waitpid(bystander, nullptr, 0);
  close(lock);
}

TEST_F(Cli, TheCauseIsTheSameSentenceEverywhere) {
  std::filesystem::create_directory(m_world.cache());
  std::filesystem::permissions(m_world.cache(), std::filesystem::perms{0755});
  const std::string path = std::filesystem::canonical(m_world.cache());
  const std::string sentence = path + " is mode 755, expected 700; chmod 700 " + path;
  EXPECT_THAT(kiln({"ls"}).err, HasSubstr("no daemon: " + sentence));
  EXPECT_THAT(kiln({"doctor"}).out, HasSubstr(sentence));
  std::filesystem::permissions(m_world.cache(), std::filesystem::perms::owner_all);
}

TEST_F(Cli, StatsCountWhatTheDaemonDid) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const auto counters = kiln({"stats", "--json"}).json()["counters"];
  EXPECT_EQ(counters["builds_done"], 1);
  EXPECT_GT(counters["compilations"], 0);
  EXPECT_EQ(kiln({"status", "--json"}).json()["counters"]["builds_done"], 1);
}

// ---- doctor and output

TEST_F(Cli, DoctorSeesWhatIsWrongWithTheDirectory) {
  const CliResult good = kiln({"doctor"});
  EXPECT_EQ(good.exit_status, 0) << good.out;
  EXPECT_THAT(good.out, HasSubstr("x86-64-v2")) << "what the host runs";
  std::filesystem::create_directory(m_world.cache());
  std::filesystem::permissions(m_world.cache(), std::filesystem::perms{0755});
  const CliResult open = kiln({"doctor"});
  EXPECT_EQ(open.exit_status, 1);
  EXPECT_THAT(open.out, HasSubstr("chmod 700 " + m_world.cache().string()));
  std::filesystem::permissions(m_world.cache(), std::filesystem::perms::owner_all);
}

TEST_F(Cli, NamesCannotSteerTheTerminal) {
  const std::string file = m_world.write("evil\x1b[31m.kiln", "graph(");
  const CliResult result = kiln({"warm", file});
  EXPECT_THAT(result.out + result.err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(result.out, HasSubstr("evil\\x1b[31m.kiln"));
}

TEST_F(Cli, ColoursAreForTerminalsUnlessAskedFor) {
  EXPECT_THAT(kiln({"config", "show"}).out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(kiln({"config", "show", "--color", "always"}).out, HasSubstr("\x1b["));
}

TEST_F(Cli, QuietKeepsDataAndErrors) {
  ASSERT_EQ(kiln({"warm", graph(6), "--quiet"}).err, "");
  const CliResult listed = kiln({"ls", "-q"});
  EXPECT_EQ(listed.err, "");
  EXPECT_NE(listed.out, "");
  EXPECT_NE(kiln({"show", "ff", "-q"}).out + kiln({"show", "ff", "-q"}).err, "");
}

}  // namespace
}  // namespace kiln
