// kiln show, and what it shows of the inside of programs and kernels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "cli_fixture.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

/// Which memory a buffer of a plan is.
std::string place_of(const nlohmann::json& buffer) {
  return buffer["place"].get<std::string>() + " " +
         (buffer.contains("index") ? buffer["index"] : buffer["offset"]).dump();
}

TEST_F(Cli, AKernelsMachineCodeIsShownAsAssembly) {
  ASSERT_EQ(kiln({"warm", graph(6), "--target", "x86-64-v2"}).exit_status, 0);
  const std::string key = newest_key("code");
  const CliResult shown = kiln({"show", key, "--asm"});
  ASSERT_EQ(shown.exit_status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("entry:\n"));
  EXPECT_THAT(shown.out, HasSubstr("# hot loop: "));
  const auto json = kiln({"show", key, "--asm", "--json"}).json();
  EXPECT_EQ(json["asm"], shown.out);
  EXPECT_EQ(json["entry"]["kind"], "code");
  EXPECT_EQ(kiln({"show", key, "--json"}).json().contains("asm"), false);
}

TEST_F(Cli, AKernelsSpecIsShownWithItsSchedule) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const auto listed = kiln({"ls", "--kind", "code", "--json"}).json()["entries"];
  ASSERT_GE(listed.size(), 2) << "products and a softmax";
  for (const auto& entry : listed) {
    const auto& head = entry["heads"][0];
    const std::string key = head["key"], name = head["name"];
    const CliResult shown = kiln({"show", key, "--spec"});
    ASSERT_EQ(shown.exit_status, 0) << shown.err;
    EXPECT_TRUE(shown.out.starts_with(name + "\n  b0: input f32[")) << shown.out;
    EXPECT_THAT(shown.out, HasSubstr(" = load b0["));
    EXPECT_EQ(kiln({"show", key, "--spec", "--json"}).json()["spec"], shown.out);
    EXPECT_NE(head["schedule"], "");
    EXPECT_THAT(kiln({"show", key}).out, HasSubstr(head["schedule"].get<std::string>()));
  }
}

TEST_F(Cli, PlansSayWhatEachKernelReadsAndWrites) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string key = newest_key("program");
  const auto plan = kiln({"show", key, "--plan", "--json"}).json()["plan"];
  EXPECT_EQ(plan["inputs"][0]["tensor"], "f32[6, 65]");
  EXPECT_EQ(plan["outputs"][0]["tensor"], "f32[6, 10]");
  ASSERT_GE(plan["launches"].size(), 2) << plan;
  std::set<std::string> places;
  for (const auto& input : plan["inputs"]) places.insert(place_of(input));
  for (const auto& launch : plan["launches"]) {
    for (const auto& buffer : launch["reads"]) EXPECT_TRUE(places.contains(place_of(buffer))) << launch;
    for (const auto& buffer : launch["writes"]) places.insert(place_of(buffer));
    EXPECT_EQ(kiln({"show", launch["code"], "--json"}).json()["entry"]["heads"][0]["name"], launch["kernel"]);
  }
  EXPECT_TRUE(places.contains(place_of(plan["outputs"][0]))) << "what the last kernel writes";
  const CliResult shown = kiln({"show", key, "--plan"});
  EXPECT_THAT(shown.out, HasSubstr("input 0       f32[6, 65]\n"));
  EXPECT_THAT(shown.out, HasSubstr(plan["launches"][0]["kernel"].get<std::string>() + "  input 0, input 1"));
  const CliResult region = kiln({"show", newest_key("plan"), "--plan"});
  ASSERT_EQ(region.exit_status, 0) << region.err;
  EXPECT_THAT(region.out, HasSubstr("input 0, input 1"));
  EXPECT_THAT(region.out, HasSubstr("output 0"));
}

TEST_F(Cli, APlanIsOfAProgramOrARegion) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const CliResult wrong = kiln({"show", newest_key("code"), "--plan"});
  EXPECT_EQ(wrong.exit_status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("is a code, and --plan is about a program"));
  EXPECT_THAT(wrong.err, HasSubstr("kiln ls --kind program"));
}

TEST_F(Cli, AssemblySpecsAndRecordsAreOfKernels) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string program = newest_key("program");
  for (const char* option : {"--asm", "--record", "--spec"}) {
    const CliResult wrong = kiln({"show", program, option});
    EXPECT_EQ(wrong.exit_status, 1);
    EXPECT_EQ(wrong.out, "");
    EXPECT_THAT(wrong.err, HasSubstr("is a program, and " + std::string(option)));
    EXPECT_THAT(wrong.err, HasSubstr("kiln ls --kind code"));
    EXPECT_EQ(kiln({"show", program, option, "--json"}).json()["error"]["code"], "invalid_argument");
  }
}

TEST_F(Cli, AssemblyThatTheWorkerCannotWriteIsAnErrorInItsWords) {
  ASSERT_EQ(kiln({"warm", graph(6)}).exit_status, 0);
  const std::string key = newest_key("code");
  m_world.set("KILN_WORKER_PATH", "/nowhere/kiln-worker");
  EXPECT_THAT(kiln({"show", key, "--asm"}).err, HasSubstr("/nowhere/kiln-worker"));
  const std::string worker = m_world.write("worker", "#!/bin/sh\necho no words for it >&2\nexit 1\n");
  std::filesystem::permissions(worker, std::filesystem::perms::owner_all);
  m_world.set("KILN_WORKER_PATH", worker);
  const CliResult refused = kiln({"show", key, "--asm"});
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("(exit status 1): no words for it"));
}

}  // namespace
}  // namespace kiln
