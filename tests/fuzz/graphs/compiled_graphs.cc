#include "tests/fuzz/graphs/compiled_graphs.h"

#include "backends/devices.h"
#include "frontend/canonical/canonical.h"
#include "frontend/wire/wire.h"
#include "jit/resolve/resolver.h"
#include "jit/worker/process_runner.h"
#include "tests/fuzz/graphs/interpreter.h"
#include "tests/jit/build/publish.h"

namespace kiln::fuzz {
namespace {

/// A client's view of the cache, and the program it finds there.
struct View {
  std::unique_ptr<Resolver> resolver;
  Resolver::Lookup lookup;
};

Expected<View> look_up(const std::string& directory, const Graph& graph) {
  KILN_ASSIGN_OR_RETURN(OpenDevice host, open_device({}));
  KILN_ASSIGN_OR_RETURN(auto resolver, Resolver::create(directory, std::move(host)));
  Resolver::Lookup lookup = resolver->find(canonicalise(graph).digest);
  return View{std::move(resolver), std::move(lookup)};
}

}  // namespace

Expected<std::unique_ptr<CompiledGraphs>> CompiledGraphs::create(const std::string& directory,
                                                                 const std::string& executor_path) {
  auto graphs = std::make_unique<CompiledGraphs>();
  graphs->m_directory = directory;
  KILN_ASSIGN_OR_RETURN(const OpenDevice host, open_device({}));
  graphs->m_target = host.targets.front();
  graphs->m_make_runner = [executor_path](const Target&) {
    return ProcessRunner::create({.executor_path = executor_path, .target = {}, .memory_max_bytes = 0});
  };
  KILN_ASSIGN_OR_RETURN(graphs->m_store, CacheStore::open({.directory = directory}));
  return graphs;
}

Status CompiledGraphs::build_and_publish(const Graph& graph) {
  const BuildRequest request{to_wire(graph), {m_target}, m_directory};
  KILN_ASSIGN_OR_RETURN(const BuildResult result, build(request, find_backend, {.make_runner = m_make_runner}));
  KILN_RETURN_IF_ERROR(m_store->publish(batch_of(result)));
  return m_store->flush();
}

Outcome CompiledGraphs::check(const Graph& graph) {
  if (const Status status = build_and_publish(graph); !status.ok()) return {status.with_context("cold")};
  const auto cold = look_up(m_directory, graph), warm = look_up(m_directory, graph);
  for (const auto* view : {&cold, &warm}) {
    if (!view->ok()) return {view->status()};
    if (!(*view)->lookup.program) return {error(StatusCode::internal, "published, yet {}", (*view)->lookup.detail)};
    Outcome outcome = check_program(graph, *(*view)->lookup.program, view == &cold ? 2 : 1);
    if (!outcome.status.ok()) return outcome;
  }
  if (const Status status = m_store->evict(0); !status.ok()) return {status.with_context("eviction")};
  Outcome outcome = check_program(graph, *cold->lookup.program);
  if (!outcome.status.ok()) return {outcome.status.with_context("evicted under a client")};
  if (const Status status = build_and_publish(graph); !status.ok()) return {status.with_context("after eviction")};
  const auto anew = look_up(m_directory, graph);
  if (!anew.ok() || !anew->lookup.program) return {error(StatusCode::internal, "built after eviction, yet not found")};
  return check_program(graph, *anew->lookup.program);
}

}  // namespace kiln::fuzz
