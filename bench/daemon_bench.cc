// How fast is a daemon's answer to who asks for a program that is there? Prints one JSON object: the round trip's
// percentiles with one asker, and answers a second with several; beside it the round trip of the same bytes through a
// socket to a thread that sends them back.
//
//   daemon_bench SECONDS ASKERS      the cache and the daemon are those of the environment

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/fd.h"
#include "client/client.h"
#include "client/connection/connection.h"
#include "frontend/canonical/canonical.h"
#include "frontend/text/text.h"
#include "frontend/wire/wire.h"

namespace kiln {
namespace {

constexpr std::string_view k_graph = R"(
graph(%x: f32[8, 64]) {
  %e = exp(%x)
  %y = add(%e, %x)
  return %y
}
)";

constexpr uint64_t k_deadline_ms = 60'000;

struct Percentiles {
  double p50 = 0, p90 = 0, p99 = 0, least = 0;
};

/// Microseconds of `call`, again and again for so long.
template <typename Call>
Percentiles time(double seconds, Call call) {
  std::vector<double> samples;
  const auto start = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - start).count() < seconds) {
    const auto before = Clock::now();
    call();
    samples.push_back(std::chrono::duration<double, std::micro>(Clock::now() - before).count());
  }
  std::ranges::sort(samples);
  const auto at = [&](double share) {
    return samples[static_cast<size_t>(share * static_cast<double>(samples.size()))];
  };
  return {at(0.5), at(0.9), at(0.99), samples.front()};
}

Percentiles time_echo(double seconds, size_t bytes) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  const UniqueFd ours(ends[0]);
  std::thread echo([theirs = UniqueFd(ends[1]), bytes] {
    std::vector<char> buffer(bytes);
    while (recv(theirs.get(), buffer.data(), bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes)) {
      if (send(theirs.get(), buffer.data(), bytes, MSG_NOSIGNAL) < 0) return;
    }
  });
  std::vector<char> message(bytes);
  const Percentiles measured = time(seconds, [&] {
    if (send(ours.get(), message.data(), bytes, MSG_NOSIGNAL) < 0) std::abort();
    if (recv(ours.get(), message.data(), bytes, MSG_WAITALL) < 0) std::abort();
  });
  shutdown(ours.get(), SHUT_RDWR);
  echo.join();
  return measured;
}

protocol::Build request_for(const Graph& graph, const Target& target) {
  const Canonical canonical = canonicalise(graph);
  protocol::Build request{
      0, to_wire(canonical.graph), {{target.backend, target.name, target.driver, target.is_deterministic}}};
  request.keys = {program_key(canonical.digest, target).digest()};
  return request;
}

Status run(double seconds, size_t askers) {
  KILN_ASSIGN_OR_RETURN(const Graph graph, parse_text(k_graph));
  KILN_ASSIGN_OR_RETURN(const LoadedConfig loaded, load_config(ConfigSources::from_process({}, {})));
  KILN_ASSIGN_OR_RETURN(const auto client, Client::create(loaded, "", {}));
  KILN_RETURN_IF_ERROR(client->compile(graph, {}).status());
  const protocol::Build request = request_for(graph, client->device().targets.front());
  std::atomic<uint64_t> built = 0, failed = 0, answers = 0;
  const auto ask = [&](Connection& connection) {
    const auto answer = connection.build(request, deadline_in(k_deadline_ms));
    failed += !answer.ok();
    built += answer.ok() && answer->compilations > 0;
    ++answers;
  };
  Connection connection(loaded.values);
  ask(connection);
  const Percentiles alone = time(seconds, [&] { ask(connection); });
  const Percentiles echo = time_echo(seconds, request.graph.size());

  answers = 0;
  const Deadline end = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < askers; ++i) {
    threads.emplace_back([&] {
      Connection own(loaded.values);
      while (Clock::now() < end) ask(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf(
      "{\"round_trip_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"least\": %.1f}, "
      "\"echo_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"least\": %.1f}, "
      "\"askers\": %zu, \"hits_per_s\": %.0f, \"built\": %lu, \"failed\": %lu}\n",
      alone.p50, alone.p90, alone.p99, alone.least, echo.p50, echo.p90, echo.p99, echo.least, askers,
      static_cast<double>(answers) / seconds, built.load(), failed.load());
  return {};
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: daemon_bench SECONDS ASKERS\n");
    return 2;
  }
  const kiln::Status status = kiln::run(std::atof(argv[1]), static_cast<size_t>(std::atoi(argv[2])));
  if (!status.ok()) std::fprintf(stderr, "daemon_bench: %s\n", status.to_string().c_str());
  return status.ok() ? 0 : 1;
}
