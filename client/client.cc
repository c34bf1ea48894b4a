#include "client/client.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ranges>

#include "backends/devices.h"
#include "backends/libraries.h"
#include "base/limits.h"
#include "base/process_mutex.h"
#include "base/usable_processors.h"
#include "client/nearest/nearest.h"
#include "client/terminal/progress.h"
#include "frontend/infer/bind_symbols.h"
#include "frontend/text/summary.h"
#include "frontend/wire/wire.h"

namespace kiln {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds k_explanation{5};     // that the daemon is asked about misses
constexpr std::chrono::seconds k_capture_daemon{2};  // that it may take to start and answer, beside the fleet's budget

/// Of a build's report: why its programs could not be checked, behind a colon.
std::string why_not_judged(const std::string& report) {
  std::string why;
  const auto parsed = nlohmann::json::parse(report, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("programs")) return why;
  for (const auto& program : parsed["programs"]) {
    if (const auto said = program.value("not_judged", ""); !said.empty()) why += ": " + said;
  }
  return why;
}

/// What people know the graph by.
std::string name_of(const Graph& graph, const Client::CompileOptions& options) {
  return options.label.empty() ? summary(graph) : fmt::format("{}: {}", options.label, summary(graph));
}

protocol::TargetName named(const Target& target) {
  return {target.backend, target.name, target.driver, target.is_deterministic, target.threads};
}

/// The job that this process is a rank of; empty: of none. torchelastic calls a job without a name "none".
std::string job_of(const Config& config) {
  if (config.cache_readonly) return "";  // what a job's ranks agree upon lies in the cache
  if (!config.job.empty()) return config.job;
  const char* run_id = std::getenv("TORCHELASTIC_RUN_ID");
  return run_id == nullptr || std::string_view(run_id) == "none" ? "" : run_id;
}

PackFolders pack_folders(const Config& config) {
  return {config.packs_path, config.packs_trust, config.packs_trust_captures};
}

/// Who mounts a pack expects hits from it: why there are none is said, once for all of a process's clients.
void say_refused(const MountedPacks& packs) {
  static std::once_flag said;
  if (packs.refusals().empty()) return;
  std::call_once(said, [&] {
    for (const std::string& why : packs.refusals()) std::fprintf(stderr, "kiln: a pack is not used: %s\n", why.c_str());
  });
}

}  // namespace

Status check_outputs(const Graph& graph) {
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId value = graph.outputs()[i];
    if (graph.value(value).producer != k_none) continue;
    if (graph.output_strides()[i] != graph.type(value).strides) {
      return invalid_argument("output {} is input {} with other strides; copy it in the graph", i,
                              graph.value(value).result_index);
    }
  }
  return {};
}

Client::Client(Config config, std::unique_ptr<Resolver> resolver, Interrupted interrupted)
    : m_config(std::move(config)), m_resolver(std::move(resolver)), m_connection(m_config, std::move(interrupted)) {}

Expected<std::unique_ptr<Client>> Client::create(std::optional<std::string> cache_directory,
                                                 std::optional<std::string> config_file, std::string_view device,
                                                 std::string_view python, Interrupted interrupted) {
  std::vector<std::pair<std::string, std::string>> flags;
  if (cache_directory) flags.emplace_back("cache.directory", *cache_directory);
  KILN_ASSIGN_OR_RETURN(LoadedConfig loaded,
                        load_config(ConfigSources::from_process(std::move(flags), std::move(config_file))));
  if (loaded.values.python_path.empty()) loaded.values.python_path = python;
  static std::once_flag said;
  if (!loaded.notice.empty()) {
    std::call_once(said, [&] { std::fprintf(stderr, "kiln: %s\n", loaded.notice.c_str()); });
  }
  return create(loaded, device, std::move(interrupted));
}

Expected<std::unique_ptr<Client>> Client::create(const LoadedConfig& loaded, std::string_view device,
                                                 Interrupted interrupted) {
  set_library_hints({loaded.values.libraries_path, loaded.values.python_path});
  KILN_ASSIGN_OR_RETURN(OpenDevice opened, open_device(device));
  for (Target& target : opened.targets) target.is_deterministic = loaded.values.deterministic;
  KILN_ASSIGN_OR_RETURN(auto resolver,
                        Resolver::create(loaded.values.cache_directory, std::move(opened), job_of(loaded.values),
                                         pack_folders(loaded.values), loaded.values.cache_shared));
  say_refused(resolver->packs());
  return std::unique_ptr<Client>(new Client(loaded.values, std::move(resolver), std::move(interrupted)));
}

Expected<std::shared_ptr<DeviceStream>> Client::stream_over(void* native) {
  if (stream() == nullptr) return error(StatusCode::failed_precondition, "the host has no queues");
  {
    const std::scoped_lock lock(process_mutex());
    if (const auto kept = m_streams.find(native); kept != m_streams.end()) return kept->second;
  }
  KILN_ASSIGN_OR_RETURN(std::shared_ptr<DeviceStream> adopted, DeviceStream::adopt(*device().device, native));
  std::shared_ptr<DeviceStream> dropped;  // destroyed after the lock
  const std::scoped_lock lock(process_mutex());
  if (m_streams.size() >= limits::k_client_streams) dropped = m_streams.extract(m_streams.begin()).mapped();
  return m_streams.try_emplace(native, std::move(adopted)).first->second;
}

void Client::keep(std::shared_ptr<const Program> program) {
  const std::scoped_lock lock(process_mutex());
  m_kept.insert(std::move(program));
}

namespace {

/// The options, with progress that says once when all is planned.
Client::CompileOptions watched(const Client::CompileOptions& options) {
  Client::CompileOptions watched = options;
  watched.progress = [seen = options.progress, planned = options.planned,
                      is_told = false](const protocol::Progress& step) mutable {
    if (seen) seen(step);
    if (is_told || (step.stage == "fuse" && step.done < step.total)) return;
    is_told = true;
    planned();
  };
  return watched;
}

}  // namespace

Expected<Client::Compiled> Client::compile(const Graph& graph, const CompileOptions& options) {
  // Devices' backends refuse what they have no kernel for as late as they compile it.
  const bool is_planned_first = device().device->is_host() && !wants_tuning(options);
  if (options.planned && is_planned_first) return compile_unseen(graph, watched(options));
  if (options.progress || !wants_tuning(options) || isatty(STDERR_FILENO) != 1) return compile_unseen(graph, options);
  // Races take a while. Of programs that are compiled at once, one is shown.
  static std::atomic<bool> is_shown{false};
  if (is_shown.exchange(true)) return compile_unseen(graph, options);
  Progress line(false);
  line.begin("kiln tunes");
  CompileOptions seen = options;
  seen.progress = [&](const protocol::Progress& step) {
    line.update(step.done, step.total, step.item.empty() ? step.stage : step.item);
  };
  auto compiled = compile_unseen(graph, seen);
  line.clear();
  is_shown = false;
  return compiled;
}

Expected<Client::Compiled> Client::compile_unseen(const Graph& graph, const CompileOptions& options) {
  if (m_config.disable) return error(StatusCode::unavailable, "kiln is disabled (KILN_DISABLE)");
  const auto start = Clock::now();
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  KILN_ASSIGN_OR_RETURN(Graph bound, bind_symbols(graph, options.symbol_values));
  const Canonical canonical = canonicalise(bound);
  Resolver::Lookup lookup = m_resolver->find(canonical.digest, threads_of(options));
  m_stats.lookup_ns += static_cast<uint64_t>((Clock::now() - start).count());
  const bool has_raced = lookup.program && lookup.program->is_tuned() && lookup.threads == threads_of(options);
  const bool is_to_race = !has_raced && !lookup.is_of_job && wants_tuning(options);
  if (options.mapped_only && (!lookup.program || is_to_race || m_config.client_recache)) {
    return error(StatusCode::not_found, "no daemon may be asked for what is not mapped yet");
  }
  const bool is_afresh = wants_afresh(canonical.digest);
  if (lookup.program && !is_afresh) {
    ++m_stats.hits_mapped;
    return is_to_race ? tune(canonical, std::move(lookup), options) : found(std::move(lookup), "mapped hit");
  }
  ++(lookup.is_deferred ? m_stats.hits_deferred : m_stats.misses);
  return ask_daemon(canonical, lookup, options, is_afresh);
}

bool Client::wants_afresh(const Digest& graph) {
  if (!m_config.client_recache) return false;
  const std::scoped_lock lock(process_mutex());
  return m_recached.insert(graph).second;
}

Expected<Client::Compiled> Client::found(Resolver::Lookup hit, std::string how) {
  const Resolver::Lookup lookup = m_resolver->agree(std::move(hit));
  m_stats.add_program(lookup.program->plans(), lookup.program->generation());
  return Compiled{lookup.program, std::move(how), lookup.key};
}

/// What is found serves where nobody can be asked for better.
Expected<Client::Compiled> Client::tune(const Canonical& canonical, Resolver::Lookup untuned,
                                        const CompileOptions& options) {
  auto built = m_connection.build(request_for(canonical, options), deadline_of(options), options.progress);
  if (!built.ok() || !take_in(*built).ok()) return found(std::move(untuned), "mapped hit");
  m_stats.compilations += built->compilations;
  m_resolver->let_go(untuned.key);
  Resolver::Lookup lookup = m_resolver->find(canonical.digest, threads_of(options));
  return lookup.program ? found(std::move(lookup), "tuned") : found(std::move(untuned), "mapped hit");
}

protocol::Build Client::request_for(const Canonical& canonical, std::span<const Target> targets,
                                    const CompileOptions& options) const {
  protocol::Build request;
  request.graph = to_wire(canonical.graph);
  request.name = name_of(canonical.graph, options);
  request.priority = options.priority;
  request.tune = wants_tuning(options);
  request.again = options.again;
  request.unkept = m_config.cache_readonly;
  for (Target target : targets) {
    if (request.tune) target.threads = threads_of(options);
    request.targets.push_back(named(target));
    request.keys.push_back(program_key(canonical.digest, target).digest());
  }
  return request;
}

protocol::Build Client::request_for(const Canonical& canonical, const CompileOptions& options) const {
  protocol::Build request = request_for(canonical, std::span(device().targets).first(1), options);
  request.sizes_vary = !options.symbol_values.empty() || m_config.client_wait == "first";
  return request;
}

Expected<protocol::Built> Client::build_for(const Graph& graph, const std::vector<std::string>& names,
                                            const CompileOptions& options) {
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  KILN_ASSIGN_OR_RETURN(const Graph bound, bind_symbols(graph, options.symbol_values));
  std::vector<Target> targets;
  for (const std::string& name : names) {
    KILN_ASSIGN_OR_RETURN(Target target, find_target(name));
    target.is_deterministic = m_config.deterministic;
    targets.push_back(std::move(target));
  }
  protocol::Build request = request_for(canonicalise(bound), targets, options);
  auto built = m_connection.build(std::move(request), deadline_of(options), options.progress);
  if (built.ok()) m_stats.compilations += built->compilations;
  return built;
}

bool Client::serves_many_sizes() const {
  return !m_config.disable && device().device->is_host() && !m_config.deterministic && m_config.autotune_mode != "max";
}

Expected<Client::Compiled> Client::load(const Resolver::ForSizes& found, std::span<const int64_t> sizes) {
  const auto start = Clock::now();
  KILN_ASSIGN_OR_RETURN(auto program, m_resolver->load(found, sizes));
  m_stats.lookup_ns += static_cast<uint64_t>((Clock::now() - start).count());
  ++m_stats.hits_mapped;
  m_stats.add_program(program->plans(), program->generation());
  return Compiled{std::move(program), "mapped hit", found.key};
}

Status Client::build_for_sizes(const Canonical& canonical, const CompileOptions& options) {
  if (!serves_many_sizes()) return error(StatusCode::unimplemented, "no program serves many sizes here");
  if (m_config.client_require_hit) return error(StatusCode::not_found, "client.require_hit is on");
  const Target& target = device().targets.front();
  protocol::Build request = request_for(canonical, {}, options);
  request.sizes.assign(options.symbol_values.begin(), options.symbol_values.end());
  request.tune = false;
  request.targets.push_back(named(target));
  KILN_ASSIGN_OR_RETURN(protocol::Built built, m_connection.build(request, deadline_of(options), options.progress));
  m_stats.compilations += built.compilations;
  return take_in(built);
}

Expected<std::vector<Artifact>> Client::collect(const Graph& graph, const CompileOptions& options,
                                                const std::string& target) {
  const auto& targets = device().targets;
  const auto known = std::ranges::find(targets, target, &Target::name);
  if (known == targets.end()) {
    KILN_RETURN_IF_ERROR(find_target(target).status());
    return error(StatusCode::failed_precondition, "code for {} cannot be checked on this host, which runs {}", target,
                 fmt::join(targets | std::views::transform(&Target::name), ", "));
  }
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  KILN_ASSIGN_OR_RETURN(const Graph bound, bind_symbols(graph, options.symbol_values));
  const Digest digest = canonicalise(bound).digest;
  auto found = m_resolver->collect(digest, *known);
  if (found.ok()) return found;
  KILN_ASSIGN_OR_RETURN(protocol::Built built, build_for(bound, {target}, {.deadline_ms = options.deadline_ms}));
  KILN_RETURN_IF_ERROR(take_in(built));
  return m_resolver->collect(digest, *known);
}

Expected<Resolver::Lookup> Client::look_up(const Graph& graph) {
  KILN_RETURN_IF_ERROR(check_outputs(graph));
  return m_resolver->find(canonicalise(graph).digest);
}

uint32_t Client::threads_of(const CompileOptions& options) const {
  static const size_t cores = usable_cores();
  const bool may_race = device().device->is_host() && !m_config.deterministic;
  return may_race && options.threads < cores ? options.threads : 0;
}

Deadline Client::deadline_of(const CompileOptions& options) const {
  if (options.deadline_ms != 0) return deadline_in(options.deadline_ms);
  return deadline_in(wants_tuning(options) ? limits::k_races_wait_ms : m_config.client_deadline_ms);
}

Expected<Client::Compiled> Client::ask_daemon(const Canonical& canonical, const Resolver::Lookup& miss,
                                              const CompileOptions& options, bool is_afresh) {
  MissRecord record{
      miss.key, miss.key_parts, miss.is_deferred ? "deferred" : kiln_miss_name(miss.miss), miss.detail, {}};
  if (m_config.client_require_hit && !miss.is_deferred) {
    const Status refused = error(StatusCode::not_found, "{}, and client.require_hit is on", miss.detail);
    record.outcome = refused.to_string();
    m_misses.add(std::move(record));
    return refused;
  }
  protocol::Build request = request_for(canonical, options);
  request.afresh = is_afresh;
  Resolver::Lookup lookup;
  auto built = build_and_find(request, canonical.digest, options, lookup);
  if (built.ok() && built->compilations == 0 && !lookup.program) {
    // It is there, yet not for this process: a build looks closer, and makes anew what is damaged.
    request.keys.clear();
    built = build_and_find(request, canonical.digest, options, lookup);
  }
  if (!built.ok()) {
    record.outcome = built.status().to_string();
    m_misses.add(std::move(record));
    return miss.is_deferred ? built.status().with_context(miss.detail) : built.status();
  }
  if (built->joined) ++m_stats.joined;
  const bool was_there = !built->joined && built->compilations == 0;
  const std::string how = built->joined ? "joined" : !was_there ? "built" : miss.is_deferred ? "checked" : "daemon hit";
  if (was_there && !miss.is_deferred) ++m_stats.hits_daemon;

  record.outcome = lookup.program ? how : fmt::format("published, yet {}", lookup.detail);
  m_misses.add(std::move(record));
  if (!lookup.program) {
    return error(StatusCode::unavailable, "the daemon published the program, yet this process cannot use it: {}{}",
                 lookup.detail, why_not_judged(built->report));
  }
  KILN_ASSIGN_OR_RETURN(Compiled compiled, found(std::move(lookup), how));
  compiled.compilations = built->compilations;
  return compiled;
}

/// Asks the daemon, and looks again into `lookup`.
Expected<protocol::Built> Client::build_and_find(const protocol::Build& request, const Digest& graph,
                                                 const CompileOptions& options, Resolver::Lookup& lookup) {
  auto built = m_connection.build(request, deadline_of(options), options.progress);
  if (!built.ok()) return built;
  m_stats.compilations += built->compilations;
  const auto start = Clock::now();
  KILN_RETURN_IF_ERROR(take_in(*built));
  lookup = m_resolver->find(graph, threads_of(options));
  m_stats.lookup_ns += static_cast<uint64_t>((Clock::now() - start).count());
  return built;
}

/// What is not kept came with the answer: it serves this process. Where the disk had no room for it one line says so.
Status Client::take_in(protocol::Built& built) {
  if (built.not_kept.empty() && !m_config.cache_readonly) return {};
  static std::once_flag said;
  if (!built.not_kept.empty()) {
    std::call_once(said, [&] {
      std::fprintf(stderr, "kiln: what is compiled is not kept: %s; make room in %s\n", built.not_kept.c_str(),
                   m_config.cache_directory.c_str());
    });
  }
  std::vector<CarriedArtifact> artifacts;
  for (protocol::CarriedArtifact& each : built.carried) {
    const LaunchData launch{each.entry, each.tasks, each.workspace_bytes, each.features, each.backend};
    artifacts.emplace_back(each.digest,
                           Artifact{static_cast<ArtifactKind>(each.kind), launch, std::move(each.payload)});
  }
  std::vector<CarriedHead> heads;
  for (const protocol::PublishedHead& head : built.heads) heads.emplace_back(head.key, head.artifact);
  return m_resolver->adopt(artifacts, heads);
}

std::string Client::explain_json() {
  const auto until = Clock::now() + k_explanation;
  const auto ask = [&](protocol::Command command) -> Expected<nlohmann::ordered_json> {
    KILN_ASSIGN_OR_RETURN(const std::string answer, m_connection.command(std::move(command), until, false));
    auto json = nlohmann::ordered_json::parse(answer, nullptr, false);
    if (!json.is_object()) return error(StatusCode::internal, "the daemon's answer is no JSON object");
    return json;
  };
  auto misses = m_misses.to_json();
  if (misses.empty()) return misses.dump();
  auto keys = KnownKeys::list(ask);
  if (!keys.ok()) return misses.dump();
  for (auto& miss : misses) {
    const KnownKey key{.key = miss["key"].get<std::string>(), .parts = parts_of({{"key_parts", miss["parts"]}})};
    if (const auto nearest = keys->nearest(key)) miss["nearest"] = nearest->to_json();
  }
  return misses.dump();
}

std::optional<std::span<const uint8_t>> Client::find_capture(std::span<const uint8_t> key) {
  if (m_config.disable) return std::nullopt;
  return m_resolver->find_capture(capture_key(key));
}

std::optional<std::span<const uint8_t>> Client::fetch_capture(std::span<const uint8_t> key) {
  const auto here = find_capture(key);
  if (here || m_config.disable || m_config.cache_readonly || m_config.cache_remote.empty()) return here;
  protocol::Command command;
  command.verb = protocol::Verb::capture_find;
  command.key = capture_key(key).digest();
  const auto budget = std::chrono::milliseconds(m_config.remote_budget_ms);
  const auto answer = m_connection.command(std::move(command), Clock::now() + k_capture_daemon + budget);
  return answer.ok() ? find_capture(key) : std::nullopt;
}

Status Client::put_capture(std::span<const uint8_t> key, std::span<const uint8_t> data, std::string_view name) {
  if (m_config.disable) return error(StatusCode::unavailable, "kiln is disabled (KILN_DISABLE)");
  if (m_config.cache_readonly) return {};
  const Key full = capture_key(key);
  protocol::Command command;
  command.verb = protocol::Verb::capture_put;
  command.key = full.digest();
  command.text = full.to_json();
  command.data.assign(data.begin(), data.end());
  command.name = name;
  auto answer =
      m_connection.command(std::move(command), Clock::now() + std::chrono::milliseconds(m_config.client_deadline_ms));
  return answer.ok() ? Status() : answer.status();
}

}  // namespace kiln
