// Tuning as people and scripts see it.

#include <gmock/gmock.h>

#include "base/usable_processors.h"
#include "cli_fixture.h"

namespace kiln {
namespace {

using testing::HasSubstr;

TEST_F(Cli, RetuneRacesProgramsAgain) {
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--json"}).exit_status, 0);
  const std::string key = newest_key("program");
  const CliResult again = kiln({"retune", key, "--json"});
  ASSERT_EQ(again.exit_status, 0) << again.err;
  EXPECT_EQ(again.json()["retuned"], 1);
  ASSERT_GE(again.json()["programs"][0]["kernels"].size(), 1);
  EXPECT_EQ(again.json()["programs"][0]["kernels"][0]["tuned"], true);
  const CliResult all = kiln({"retune"});
  EXPECT_EQ(all.exit_status, 0) << all.err;
  EXPECT_THAT(all.out, HasSubstr("WINNER"));
  EXPECT_EQ(kiln({"warm", graph(33), "--json"}).json()["graphs"][0]["result"], "mapped hit");
  EXPECT_EQ(kiln({"run", graph(33), "--check", "--json"}).json()["outputs"][0]["right"], true);

  const CliResult wrong = kiln({"retune", newest_key("record")});
  EXPECT_EQ(wrong.exit_status, 1);
  EXPECT_THAT(wrong.err, HasSubstr("kiln ls --kind program"));
  EXPECT_EQ(kiln({"retune", "no-key"}).exit_status, 2);
}

TEST_F(Cli, RanksOfAJobRunWhatItsFirstRankFound) {
  const auto generation = [&](const std::string& job) {
    const auto run = kiln({"run", graph(33), "--check", "--set", "job=" + job, "--json"}).json();
    EXPECT_EQ(run["outputs"][0]["right"], true);
    return run["generation"].get<int>();
  };
  EXPECT_EQ(generation("first"), 0);
  EXPECT_EQ(kiln({"warm", graph(33), "--tune"}).exit_status, 0);
  EXPECT_EQ(generation("first"), 0) << "the job has begun with it";
  EXPECT_GT(generation("second"), 0);
  EXPECT_GT(generation(""), 0);
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--set", "job=first"}).exit_status, 0);
  EXPECT_EQ(generation("first"), 0);
  EXPECT_EQ(kiln({"clear"}).exit_status, 0);
  EXPECT_EQ(generation("first"), 0) << "what the cache lost is built anew";
}

TEST_F(Cli, RanksThatTorchelasticStartedAreAJobToo) {
  const auto generation = [&](const std::string& run_id) {
    m_world.set("TORCHELASTIC_RUN_ID", run_id);
    return kiln({"run", graph(33), "--json"}).json()["generation"].get<int>();
  };
  EXPECT_EQ(generation("first"), 0);
  EXPECT_EQ(generation("none"), 0);
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--set", "job=another"}).exit_status, 0);
  EXPECT_EQ(generation("first"), 0) << "the run has begun with it";
  EXPECT_GT(generation("second"), 0);
  EXPECT_GT(generation("none"), 0) << "what torchelastic calls a run without a name is no job";
}

TEST_F(Cli, WhatIsDeterministicHasAProgramOfItsOwnThatNeverRaces) {
  EXPECT_EQ(kiln({"warm", graph(33), "--tune"}).exit_status, 0);
  const auto run = [&](const std::string& deterministic) {
    return kiln({"run", graph(33), "--check", "--set", "deterministic=" + deterministic, "--json"}).json();
  };
  EXPECT_GT(run("false")["generation"], 0);
  EXPECT_EQ(run("true")["found"], "built");
  EXPECT_EQ(run("true")["found"], "mapped hit");
  EXPECT_EQ(run("true")["generation"], 0);
  const auto warmed = kiln({"warm", graph(33), "--tune", "--set", "deterministic=true", "--json"}).json();
  EXPECT_EQ(warmed["graphs"][0]["result"], "mapped hit");
  EXPECT_EQ(kiln({"retune", "--json"}).json()["asked"], 1) << "the other one alone";
}

TEST_F(Cli, WhatRacedOnFewerThreadsIsFoundByProgramsOnAsMany) {
  if (usable_cores() < 2) GTEST_SKIP() << "one core: there are no fewer threads";
  const auto run = [&](const std::string& threads, const std::string& mode) {
    return kiln({"run", graph(33), "--threads", threads, "--set", "autotune.mode=" + mode, "--check", "--json"}).json();
  };
  EXPECT_EQ(run("1024", "off")["found"], "built");
  EXPECT_EQ(run("1", "off")["found"], "mapped hit") << "what has not raced is everybody's";
  const auto tuned = run("1", "max");
  EXPECT_EQ(tuned["found"], "tuned");
  EXPECT_EQ(tuned["outputs"][0]["right"], true);
  EXPECT_EQ(run("1", "off")["generation"], tuned["generation"]);
  EXPECT_EQ(run("1024", "off")["generation"], 0);
  const std::string key = newest_key("program");
  EXPECT_EQ(kiln({"show", key, "--json"}).json()["entry"]["heads"][0]["key_parts"]["threads"], "1");
  EXPECT_EQ(kiln({"retune", key, "--json"}).json()["retuned"], 1);
  EXPECT_GT(run("1", "off")["generation"], tuned["generation"]);
  EXPECT_EQ(run("1024", "off")["generation"], 0);
}

TEST_F(Cli, TopShowsWhatTheDaemonDoes) {
  EXPECT_EQ(kiln({"top"}).exit_status, 3) << "no daemon is started to be watched";
  EXPECT_EQ(kiln({"warm", graph(33)}).exit_status, 0);
  const CliResult top = kiln({"top"});
  EXPECT_EQ(top.exit_status, 0) << top.err;
  EXPECT_THAT(top.out, HasSubstr("1 done"));
  EXPECT_THAT(top.out, HasSubstr("tuning"));
  EXPECT_EQ(top.out.find('\x1b'), std::string::npos) << "not a terminal";
  EXPECT_EQ(kiln({"top", "--once", "--json"}).json()["tuning"], nullptr);
}

TEST_F(Cli, WhatWasTunedIsRecordedAndShown) {
  EXPECT_EQ(kiln({"warm", graph(33), "--json"}).json()["graphs"][0]["result"], "built");
  const auto tuned = kiln({"warm", graph(33), "--tune", "--json"}).json();
  EXPECT_EQ(tuned["graphs"][0]["result"], "tuned");
  EXPECT_EQ(kiln({"warm", graph(33), "--tune", "--json"}).json()["graphs"][0]["result"], "mapped hit");
  const CliResult shown = kiln({"show", newest_key("record")});
  EXPECT_EQ(shown.exit_status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("winner"));
  EXPECT_THAT(shown.out, HasSubstr("MEDIAN"));
  const CliResult run = kiln({"run", graph(33), "--check", "--json"});
  EXPECT_EQ(run.json()["found"], "mapped hit");
  EXPECT_EQ(run.json()["outputs"][0]["right"], true);
}

TEST_F(Cli, ARecordIsFoundByTheKeyOfItsKernelOrPlan) {
  ASSERT_EQ(kiln({"warm", graph(33), "--tune"}).exit_status, 0);
  const auto codes = kiln({"ls", "--kind", "code", "--json"}).json()["entries"];
  size_t raced = 0;
  for (const auto& code : codes) {
    if (code["heads"].empty()) continue;  // a race replaced it
    const std::string key = code["heads"][0]["key"];
    const CliResult shown = kiln({"show", key, "--record"});
    if (shown.exit_status != 0) {  // softmax is no product
      EXPECT_EQ(shown.exit_status, 1);
      EXPECT_THAT(shown.err, HasSubstr("has not raced"));
      EXPECT_THAT(shown.err, HasSubstr("kiln retune"));
      continue;
    }
    ++raced;
    EXPECT_THAT(shown.out, HasSubstr("MEDIAN"));
    EXPECT_THAT(shown.out, HasSubstr("of their time stolen"));
    const auto records = kiln({"show", key, "--record", "--json"}).json()["records"];
    ASSERT_EQ(records.size(), 1);
    EXPECT_THAT(records[0]["kernel"].get<std::string>(), HasSubstr("gemm"));
    EXPECT_GT(records[0]["host"]["threads"], 0);
    EXPECT_GT(records[0]["host"]["processors"], 0);
  }
  EXPECT_GT(raced, 0);
  EXPECT_EQ(raced + 1, kiln({"ls", "--kind", "record", "--json"}).json()["matched"]);
  const CliResult plan = kiln({"show", newest_key("plan"), "--record"});
  ASSERT_EQ(plan.exit_status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("plan with gemm"));
  EXPECT_THAT(plan.out, HasSubstr("all fused"));
  EXPECT_THAT(plan.out, HasSubstr("heavy epilogues apart"));
}

TEST_F(Cli, BenchHoldsTunedKernelsAgainstTheMachine) {
  const CliResult measured = kiln({"bench", "--quick", "--json"});
  ASSERT_EQ(measured.exit_status, 0) << measured.err;
  const auto roofs = measured.json()["roofs"], kernels = measured.json()["kernels"];
  ASSERT_GE(roofs.size(), 1);
  EXPECT_EQ(roofs[0]["threads"], 1);
  EXPECT_GT(roofs[0]["read_bytes_per_second"], 0);
  EXPECT_EQ(kernels.size(), roofs.size() * roofs[0]["operations_per_second"].size());
  for (const auto& each : kernels) EXPECT_GT(each["seconds"], 0) << each;
  if (kernels.empty()) return;  // no multiply-adds here
  EXPECT_GT(kiln({"ls", "--kind", "record", "--json"}).json()["matched"], 0) << "kernels have raced";
  const CliResult again = kiln({"bench", "--quick"});
  EXPECT_EQ(again.exit_status, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("OF ROOF"));
}

TEST_F(Cli, AKernelThatIsDeterministicHasNoRecordAndSaysSo) {
  ASSERT_EQ(kiln({"warm", graph(33), "--set", "deterministic=true"}).exit_status, 0);
  const CliResult shown = kiln({"show", newest_key("code"), "--record"});
  EXPECT_EQ(shown.exit_status, 1);
  EXPECT_THAT(shown.err, HasSubstr("is deterministic"));
}

}  // namespace
}  // namespace kiln
