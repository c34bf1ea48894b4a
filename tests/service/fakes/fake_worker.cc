// A kiln-worker whose builds do as the graph's bytes say: every fault of a compiler, without one.
//   "ok…"  "slow…"  "hang…"  "abort…"  "segv…"  "oom…"  "exit…"  "fail…"  "throw…"  "big…"  "escape…"  "driver…"
//   "share…"  "unjudged…"  "layer…"  "held…"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "cache/format/artifact_bytes.h"
#include "jit/run/program_generated.h"
#include "jit/worker/zygote.h"

namespace {

using namespace kiln;

/// The files that a test reads. Builds may open none for writing: the zygote does, in the folder that the test names.
class Notes {
 public:
  void open_in(const std::string& directory) {
    m_builds.reset(open((directory + "/builds").c_str(), k_mode, 0600));
    m_priority.reset(open((directory + "/priority").c_str(), k_mode, 0600));
  }
  /// Counts forks for real: a line for each build that began.
  void add_build(std::string_view graph) const { add(m_builds, fmt::format("{}\n", graph)); }
  /// A line for each build that says so.
  void add_priority(std::string_view priority) const { add(m_priority, fmt::format("{}\n", priority)); }

 private:
  static constexpr int k_mode = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  static void add(const UniqueFd& file, const std::string& text) {
    [[maybe_unused]] const ssize_t wrote = write(file.get(), text.data(), text.size());
  }
  UniqueFd m_builds, m_priority;
};

Notes g_notes;

/// How many builds of the graph have begun.
size_t builds_of(const BuildRequest& request, std::string_view graph) {
  std::ifstream file(request.cache_directory + "/builds");
  size_t builds = 0;
  for (std::string line; std::getline(file, line);) builds += line == graph ? 1 : 0;
  return builds;
}

/// What a graph's key is the digest of.
std::string key_parts_of(std::string_view graph) { return fmt::format(R"({{"level":"program","graph":"{}"}})", graph); }

BuildResult result_of(std::string_view graph, size_t payload_bytes) {
  BuildResult result;
  BuiltArtifact artifact;
  artifact.kind = 3;
  artifact.payload.assign(payload_bytes, 7);
  std::copy(graph.begin(), graph.end(), artifact.payload.begin());
  artifact.digest = artifact_digest({ArtifactKind::program, {}, artifact.payload});
  result.artifacts.push_back(artifact);
  const std::string parts = key_parts_of(graph);
  result.heads.push_back({digest_of(parts), artifact.digest, 0, parts});
  result.compilations = 3;
  result.report = "{}";
  return result;
}

/// Tries what a compile worker may not do. Where the system did it without a filter, it would do no harm here.
Status escape(const std::string& directory) {
  const std::string existing = directory + "/kilnd.lock", absent = directory + "/absent", mark = directory + "/builds";
  const std::string memory = fmt::format("/proc/{}/mem", getppid());
  const auto text = [](const std::string& path) { return reinterpret_cast<long>(path.c_str()); };
  const long zygote = getppid(), nobody = 1L << 30;
  const struct {
    const char* what;
    long call, a = 0, b = 0, c = 0, d = 0;
  } attempts[] = {
      {"open a socket", SYS_socket, AF_INET, SOCK_STREAM},
      {"signal its zygote", SYS_kill, zygote, SIGCONT},
      {"look whether its zygote lives", SYS_kill, zygote, 0},
      {"kill a process group", SYS_kill, -nobody, SIGKILL},
      {"kill its own process group", SYS_kill, 0, SIGKILL},
      {"signal another's thread", SYS_tgkill, zygote, zygote, 0},
      {"signal a thread", SYS_tkill, zygote, 0},
      {"queue a signal", SYS_rt_sigqueueinfo, nobody, SIGCONT, 0},
      {"queue a signal to a thread", SYS_rt_tgsigqueueinfo, nobody, nobody, SIGCONT, 0},
      {"open a process", SYS_pidfd_open, zygote},
      {"take another's descriptor", SYS_pidfd_getfd, -1, 0},
      {"signal an opened process", SYS_pidfd_send_signal, -1, SIGCONT},
      {"limit another process", SYS_prlimit64, zygote, RLIMIT_CORE},
      {"trace a process", SYS_ptrace, PTRACE_CONT, nobody},
      {"read another's memory", SYS_process_vm_readv, zygote},
      {"write another's memory", SYS_process_vm_writev, zygote},
      {"open another's memory", SYS_open, text(memory), O_RDWR},
      {"attach shared memory", SYS_shmat, -1},
      {"set up a ring", SYS_io_uring_setup, 0},
      {"enter a ring", SYS_io_uring_enter, -1},
      {"register with a ring", SYS_io_uring_register, -1},
      {"run a file without a name", SYS_execveat, -1, text(absent)},
      {"open by a struct", SYS_openat2, AT_FDCWD, text(existing)},
      {"watch the machine", SYS_perf_event_open, 0},
      {"load a program into the kernel", SYS_bpf, -1},
      {"handle page faults", SYS_userfaultfd, -1},
      {"mount", SYS_mount, 0, text(absent)},
      {"unmount", SYS_umount2, text(absent), 0},
      {"open a mount", SYS_open_tree, AT_FDCWD, text(absent)},
      {"enter a namespace", SYS_setns, -1, 0},
      {"leave a namespace", SYS_unshare, 0},
      {"type into a terminal", SYS_ioctl, -1, TIOCSTI},
      {"rename a file", SYS_rename, text(absent), text(absent)},
      {"link a file", SYS_link, text(absent), text(absent)},
      {"link by name", SYS_symlink, text(absent), text(mark)},
      {"cut a file", SYS_truncate, text(absent), 0},
      {"make a folder", SYS_mkdir, text(mark), 0700},
      {"remove a folder", SYS_rmdir, text(absent)},
      {"make a fifo", SYS_mknod, text(mark), S_IFIFO | 0600},
      {"make a file", SYS_creat, text(absent), 0600},
      {"let others in", SYS_chmod, text(absent), 0777},
      {"write a file", SYS_open, text(existing), O_WRONLY},
      {"write a file of a folder", SYS_openat, AT_FDCWD, text(existing), O_WRONLY},
      {"read and write a file", SYS_openat, AT_FDCWD, text(existing), O_RDWR},
      {"make a file as it reads", SYS_openat, AT_FDCWD, text(mark), O_RDONLY | O_CREAT, 0600},
      {"cut a file as it reads", SYS_openat, AT_FDCWD, text(absent), O_RDONLY | O_TRUNC},
  };
  for (const auto& each : attempts) {
    errno = 0;
    if (syscall(each.call, each.a, each.b, each.c, each.d) != -1 || errno != EPERM) {
      return error(StatusCode::internal, "could {}: {}", each.what, std::strerror(errno));
    }
  }
  if (unlink("/proc/self/status") != -1 || errno != ENOENT) {  // is there, and stays
    return error(StatusCode::internal, "could remove a file: {}", std::strerror(errno));
  }
  const UniqueFd file(open(existing.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? Status() : error(StatusCode::internal, "could not read a file: {}", std::strerror(errno));
}

/// Drivers of devices open these for writing, and listen on a socket of this host. The network is not theirs either.
Status open_as_a_driver_does() {
  const UniqueFd device(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!device) return error(StatusCode::internal, "could not open a device: {}", std::strerror(errno));
  const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // without a name the kernel chooses one
  const bool listens =
      listener && bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address.sun_family) == 0 &&
      listen(listener.get(), 1) == 0;
  if (!listens) return error(StatusCode::internal, "could not listen: {}", std::strerror(errno));
  const UniqueFd network(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return network ? error(StatusCode::internal, "could open a socket of the network") : Status();
}

std::string own_priority() { return fmt::format("{} {}", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0)); }

/// A build in the background, of a graph that has three kernels: each build races one. "vain…" never does, "long…" takes
/// an hour, "guest…" says with which priority it runs.
Expected<BuildResult> race(const BuildRequest& request, const std::string& graph) {
  if (graph.starts_with("long")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (graph.starts_with("guest")) g_notes.add_priority(own_priority());
  BuildResult result = result_of(graph, 100);
  result.raced = graph.starts_with("vain") ? 0 : 1;
  result.is_tuned = result.raced > 0 && builds_of(request, graph) >= 3;
  return result;
}

/// What the verdict says of a candidate for the layer. One dies over it, and one that it passes makes the program wrong.
enum : uint8_t { k_right = 0xc3, k_deadly = 0xcc, k_cunning = 0xf4 };
std::string judge_layer(const BuiltArtifact& candidate) {
  if (candidate.payload[0] == k_deadly) abort();
  return candidate.payload[0] == k_right || candidate.payload[0] == k_cunning ? "" : "output 0 is wrong";
}

/// A program of one kernel, which all such graphs share. "layer dead…" dies over it, "layer bad…" fails with it made.
Expected<BuildResult> build_on_layer(const std::string& graph, const BuildEnvironment& environment) {
  CodeSupply& supply = *environment.supply;
  const std::string_view parts = R"({"level":"code"})";
  const Digest key = digest_of(parts);
  BuildResult result = result_of(graph, 100);
  result.compilations = 0;
  KILN_ASSIGN_OR_RETURN(CodeAnswer answer, supply.ask({&key, 1}, false, true));
  if (!answer.elsewhere.empty()) {
    KILN_ASSIGN_OR_RETURN(answer, supply.ask({&key, 1}, true, true));
  }
  std::string rejected;
  if (!answer.found.empty() && !answer.found[0].is_proven) {
    SuppliedCode& candidate = answer.found[0];
    rejected = judge_layer(candidate.artifact);
    if (rejected.empty()) {
      candidate.is_proven = true;
      candidate.key_parts = parts;
      KILN_RETURN_IF_ERROR(supply.give({candidate}));
    } else {
      answer.found.clear();
    }
  }
  if (answer.found.empty()) {
    environment.progress("make", 0, 1, "the layer");
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    if (graph.starts_with("layer dead")) abort();
    SuppliedCode made{key, 0, {.kind = 1, .payload = std::vector<uint8_t>(64, k_right)}, std::string(parts)};
    made.rejected = rejected;
    made.artifact.digest = artifact_digest({ArtifactKind::code, {}, made.artifact.payload});
    answer.found = {made};
    result.compilations = 1;
    KILN_RETURN_IF_ERROR(supply.give({made}));
    if (graph.starts_with("layer bad")) return error(StatusCode::internal, "the program is wrong");
  }
  if (answer.found[0].artifact.payload[0] == k_cunning) return error(StatusCode::internal, "the program is wrong");
  result.heads.push_back({key, answer.found[0].artifact.digest, answer.found[0].generation, std::string(parts)});
  result.artifacts.push_back(answer.found[0].artifact);
  return result;
}

/// A program of one plan that has raced, which all such graphs share: it is made here unless somebody has it.
Expected<BuildResult> build_on_raced_plan(const std::string& graph, const BuildEnvironment& environment) {
  const std::string_view parts = R"({"level":"plan"})";
  const Digest key = digest_of(parts);
  BuildResult result = result_of(graph, 100);
  KILN_ASSIGN_OR_RETURN(const auto found, environment.supply->find({&key, 1}, ArtifactKind::plan, /*raced=*/true));
  result.compilations = found.empty() ? 1 : 0;
  if (!found.empty()) return result;
  flatbuffers::FlatBufferBuilder builder;
  fb::PlanBuilder plan(builder);
  plan.add_choice_generation(1);
  builder.Finish(plan.Finish());
  BuiltArtifact artifact{.kind = KILN_ARTIFACT_PLAN,
                         .payload = {builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize()}};
  artifact.digest = artifact_digest({ArtifactKind::plan, {}, artifact.payload});
  result.heads.push_back({key, artifact.digest, 1, std::string(parts)});
  result.artifacts.push_back(std::move(artifact));
  return result;
}

Expected<BuildResult> fake_build(const BuildRequest& request, const BuildEnvironment& environment) {
  const std::string graph(request.graph_wire.begin(), request.graph_wire.end());
  const auto is = [&](std::string_view word) { return graph.starts_with(word); };
  g_notes.add_build(graph);
  environment.progress("compile", 1, 2, "kernel");
  if (request.tuning == Tuning::background) return race(request, graph);
  if (is("held")) {  // until the test lets go
    g_notes.add_priority(fmt::format("{}: {}", graph, own_priority()));
    while (access((request.cache_directory + "/go").c_str(), F_OK) != 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (is("slow")) std::this_thread::sleep_for(std::chrono::milliseconds(400));
  if (is("hang")) std::this_thread::sleep_for(std::chrono::hours(1));
  if (is("abort")) abort();
  if (is("segv")) {
    signal(SIGSEGV, SIG_DFL);  // sanitizers would turn it into an exit status
    raise(SIGSEGV);
  }
  if (is("exit")) _exit(7);
  if (is("throw")) throw std::runtime_error("from the compiler");
  if (is("fail ")) return error(StatusCode::unimplemented, "op {} is not known", graph.substr(5));
  if (is("fail")) return error(StatusCode::unimplemented, "op nothing is not known");
  if (is("oom")) {
    std::vector<std::vector<char>> kept;
    for (;;) kept.emplace_back(size_t{64} << 20);
  }
  if (is("once") && builds_of(request, graph) == 1) abort();  // crashes on its first try only
  if (is("escape")) KILN_RETURN_IF_ERROR(escape(request.cache_directory));
  if (is("driver")) KILN_RETURN_IF_ERROR(open_as_a_driver_does());
  if (is("run")) {  // the execution worker, from within a compile worker
    auto runner = environment.make_runner({"cpu", "x86-64-v2"});
    if (!runner) return runner.status();
    auto buffers = (*runner)->prepare(std::vector<CandidateBuffer>{{64, {}}});
    if (!buffers) return buffers.status();
    auto run = (*runner)->run(Image{.code = {0xc3}}, 1'000, 1);
    if (!run) return run.status();
  }
  if (is("unjudged")) {
    BuildResult result = result_of(graph, 100);
    result.heads[0].not_judged = "it needs 9 bytes, at most 1";
    result.heads[0].name = request.name;
    return result;
  }
  if (is("layer")) return build_on_layer(graph, environment);
  if (is("raced")) return build_on_raced_plan(graph, environment);
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
    result.heads[0].key_parts = key_parts_of(graph);
    result.heads[0].key = digest_of(result.heads[0].key_parts);
    return result;
  }
  BuildResult result = result_of(graph, is("big") ? size_t{8} << 20 : 100);
  result.heads[0].name = request.name;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const auto open_notes = [] {
    if (const char* directory = getenv("FAKE_WORKER_NOTES"); directory != nullptr) g_notes.open_in(directory);
  };
  return kiln::zygote_main(argc, argv, open_notes, fake_build);
}
