// A kiln-worker whose builds do as the graph's bytes say: every fault of a compiler, without one.
//   "ok…"  "slow…"  "hang…"  "abort…"  "segv…"  "oom…"  "exit…"  "fail…"  "throw…"  "big…"  "escape…"
//   "share…"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "cache/format/artifact_bytes.h"
#include "jit/worker/zygote.h"

namespace {

using namespace kiln;

/// Counts forks for real: a line for each build that began, in the cache directory.
void note_build(const BuildRequest& request, std::string_view graph) {
  std::ofstream(request.cache_directory + "/builds", std::ios::app) << graph << "\n";
}

BuildResult result_of(std::string_view graph, size_t payload_bytes) {
  BuildResult result;
  BuiltArtifact artifact;
  artifact.kind = 3;
  artifact.payload.assign(payload_bytes, 7);
  std::copy(graph.begin(), graph.end(), artifact.payload.begin());
  artifact.digest = artifact_digest({ArtifactKind::program, {}, artifact.payload});
  result.artifacts.push_back(artifact);
  result.heads.push_back({digest_of(std::string("key ") + std::string(graph)), artifact.digest, 0, "{}"});
  result.compilations = 3;
  result.report = "{}";
  return result;
}

/// A build in the background, of a graph that has three kernels: each build races one. "vain…" never does, "long…" takes
/// an hour, "guest…" says with which priority it runs.
Expected<BuildResult> race(const BuildRequest& request, const std::string& graph) {
  if (graph.starts_with("long")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (graph.starts_with("guest")) {
    std::ofstream(request.cache_directory + "/priority")
        << getpriority(PRIO_PROCESS, 0) << " " << sched_getscheduler(0);
  }
  std::ifstream file(request.cache_directory + "/builds");
  size_t builds = 0;
  for (std::string line; std::getline(file, line);) builds += line == graph ? 1 : 0;
  BuildResult result = result_of(graph, 100);
  result.raced = graph.starts_with("vain") ? 0 : 1;
  result.is_tuned = result.raced > 0 && builds >= 3;
  return result;
}

Expected<BuildResult> fake_build(const BuildRequest& request, const BuildEnvironment& environment) {
  const std::string graph(request.graph_wire.begin(), request.graph_wire.end());
  const auto is = [&](std::string_view word) { return graph.starts_with(word); };
  note_build(request, graph);
  environment.progress("compile", 1, 2, "kernel");
  if (request.tuning == Tuning::background) return race(request, graph);
  if (is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  if (is("hang")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (is("abort")) abort();
  if (is("segv")) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers would turn it into an exit status
    raise(SIGSEGV);
  }
  if (is("exit")) _exit(7);
  if (is("throw")) throw std::runtime_error("from the compiler");
  if (is("fail")) return error(StatusCode::unimplemented, "op nothing is not known");
  if (is("oom")) {
    std::vector<std::vector<char>> kept;
    for (;;) kept.emplace_back(size_t{64} << 20);
  }
  if (is("once")) {  // crashes on its first try only
    const std::string mark = request.cache_directory + "/tried";
    if (!std::filesystem::exists(mark)) {
      std::ofstream(mark).put('x');
      abort();
    }
  }
  if (is("escape")) {
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0 || errno != EPERM)
      return error(StatusCode::internal, "could open a socket");
    if (std::remove((request.cache_directory + "/kilnd.lock").c_str()) == 0) {
      return error(StatusCode::internal, "could remove a file");
    }
  }
  if (is("run")) {  // the execution worker, from within a compile worker
    auto runner = environment.make_runner({"cpu", "x86-64-v2"});
    if (!runner) return runner.status();
    auto buffers = (*runner)->prepare(std::vector<CandidateBuffer>{{64, {}}});
    if (!buffers) return buffers.status();
    auto run = (*runner)->run(Image{.code = {0xc3}}, 1'000, 1);
    if (!run) return run.status();
  }
  if (is("share")) {
    BuildResult result = result_of(graph, 100);
    result.report = std::to_string(environment.threads());
    return result;
  }
  environment.progress("compile", 2, 2, "kernel");
  if (is("astray")) {  // a head that leads to nothing
    BuildResult result = result_of(graph, 100);
    result.heads[0].artifact = digest_of("no artifact of this batch");
    return result;
  }
  // A key of its own, and each time other bytes under it.
  if (is("varies")) {
    BuildResult result = result_of(fmt::format("{} {}", graph, getpid()), 5'000);
    result.heads[0].key = digest_of("key " + graph);
    return result;
  }
  return result_of(graph, is("big") ? size_t{8} << 20 : 100);
}

}  // namespace

int main(int argc, char** argv) { return kiln::zygote_main(argc, argv, {}, fake_build); }
