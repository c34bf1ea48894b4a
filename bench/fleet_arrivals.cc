// What does a fleet ask of its store? Hosts with empty caches arrive one after the other, each of a job of several at once,
// each job of one of many models, of which few are most people's; and each does with its daemon's own code (service/supplies.h)
// what a build does: asks for programs, then for code, leases what nobody has, makes it, waits for what others make, gives what
// it made. Only the compiling is a sleep. Prints one JSON object.
//
//   fleet_arrivals URL KEYS HOSTS SECONDS [name=value…]   KEYS: a folder of kiln key create; names and defaults: see Shape

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cache/format/artifact_bytes.h"
#include "jit/build/artifact.h"
#include "service/supplies.h"

namespace kiln {
namespace {

/// Of the fleet and of its models.
struct Shape {
  std::map<std::string, double> values = {
      {"models", 200},  // the n-th is asked for in proportion to 1/n
      {"ranks", 8},     // hosts of a job, which arrive at once
      {"programs", 2},  // of a model; as GPT-2's training has them, with its kernels and their bytes
      {"kernels", 36},  // of a program
      {"kernel_bytes", 1'500},
      {"shared", 0.3},     // of a model's kernels, which other models have too
      {"compile_ms", 20},  // a kernel's
      {"budget_ms", 200},  // as remote.budget_ms
      {"threads", 64},     // hosts that the simulation has at once
  };
  double operator[](const char* name) const { return values.at(name); }
  size_t count(const char* name) const { return static_cast<size_t>(values.at(name)); }
};

Digest key_of(const std::string& name) { return digest_of(std::string_view(name)); }

/// Kernels and programs by their names, the same bytes whoever makes them.
class Models {
 public:
  explicit Models(const Shape& shape) : m_shape(shape) {}

  std::string program(size_t model, size_t index) const { return fmt::format("program {} {}", model, index); }
  std::vector<std::string> kernels(size_t model, size_t index) const {
    const size_t count = m_shape.count("kernels");
    const auto shared = static_cast<size_t>(m_shape["shared"] * static_cast<double>(count));
    std::vector<std::string> names;
    for (size_t i = 0; i < count; ++i) {
      names.push_back(i < shared ? fmt::format("kernel {} {}", index, i)
                                 : fmt::format("kernel {} {} {}", model, index, i));
    }
    return names;
  }
  BuiltArtifact artifact(const std::string& name, ArtifactKind kind) const {
    std::vector<uint8_t> bytes(kind == ArtifactKind::code ? m_shape.count("kernel_bytes") : 2'000);
    std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(name)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    BuiltArtifact made{.kind = static_cast<uint16_t>(kind), .payload = std::move(bytes)};
    made.digest = artifact_digest({kind, {}, made.payload});
    return made;
  }

 private:
  const Shape& m_shape;
};

/// What a host has built, as far as its own programs need it.
class HostStore final : public EntryStore {
 public:
  void keep(const BuiltArtifact& program, std::vector<std::pair<Digest, Artifact>> needs) {
    m_needs[program.digest] = std::move(needs);
  }
  Status publish(const BuildResult&, const std::vector<uint8_t>&, bool) override { return {}; }
  std::vector<std::pair<Digest, Artifact>> needs_of(const Digest& artifact) override { return m_needs[artifact]; }
  Expected<std::optional<UntunedProgram>> next_untuned(const std::unordered_set<Digest>&) override {
    return std::optional<UntunedProgram>();
  }
  Expected<std::string> command(const protocol::Command&) override { return std::string(); }

 private:
  std::unordered_map<Digest, std::vector<std::pair<Digest, Artifact>>> m_needs;
};

struct Totals {
  std::mutex mutex;
  std::vector<double> found_ms;  // of builds whose program was there
  std::vector<double> built_ms;
  std::unordered_map<std::string, size_t> compiled;
  std::atomic<uint64_t> keys_asked{0}, searches_failed{0}, entries_found{0}, entries_written{0}, entries_dropped{0};
};

/// One host, from its first build to its last.
class Host {
 public:
  Host(const Config& config, const Shape& shape, Totals& totals)
      : m_supplies(config), m_shape(shape), m_models(shape), m_totals(totals) {}
  ~Host() {
    while (m_supplies.is_offering()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const FleetCounts& counts = *m_supplies.fleet_counts();
    m_totals.keys_asked += counts.keys_asked;
    m_totals.searches_failed += counts.searches_failed;
    m_totals.entries_found += counts.entries_found;
    m_totals.entries_written += counts.entries_written;
    m_totals.entries_dropped += counts.entries_dropped;
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void build(size_t model, size_t index) {
    const auto start = Clock::now();
    const auto supply = m_supplies.for_build();
    const std::string program = m_models.program(model, index);
    const Digest key = key_of(program);
    const bool is_found = supply->programs({&key, 1}, false).has_value();
    if (!is_found) make(program, m_models.kernels(model, index), *supply);
    const double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    const std::scoped_lock lock(m_totals.mutex);
    (is_found ? m_totals.found_ms : m_totals.built_ms).push_back(ms);
  }

 private:
  void make(const std::string& program, const std::vector<std::string>& kernels, BuildSupply& supply) {
    std::unordered_map<Digest, std::string> names;
    std::vector<Digest> keys;
    for (const std::string& kernel : kernels) {
      keys.push_back(key_of(kernel));
      names.emplace(keys.back(), kernel);
    }
    std::vector<Digest> mine, elsewhere = keys;
    for (const bool waits : {false, true}) {
      if (elsewhere.empty()) break;
      const CodeAnswer answer = supply.ask(elsewhere, waits, false, deadline_in(600'000), [] { return false; });
      mine = elsewhere;
      std::erase_if(mine, [&](const Digest& key) {
        return std::ranges::find(answer.found, key, &SuppliedCode::key) != answer.found.end() ||
               std::ranges::find(answer.elsewhere, key) != answer.elsewhere.end();
      });
      elsewhere = answer.elsewhere;
      compile(mine, names, supply);
    }
    std::vector<std::pair<Digest, Artifact>> needs;
    for (const std::string& kernel : kernels) {
      BuiltArtifact code = m_models.artifact(kernel, ArtifactKind::code);
      needs.emplace_back(code.digest, Artifact{ArtifactKind::code, {}, std::move(code.payload)});
    }
    BuildResult result;
    result.artifacts.push_back(m_models.artifact(program, ArtifactKind::program));
    result.heads.push_back({key_of(program), result.artifacts[0].digest, 0, program});
    m_store.keep(result.artifacts[0], std::move(needs));
    m_supplies.offer(result, m_store);
  }

  void compile(const std::vector<Digest>& keys, const std::unordered_map<Digest, std::string>& names,
               BuildSupply& supply) {
    if (keys.empty()) return;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(m_shape["compile_ms"]) * keys.size());
    std::vector<SuppliedCode> made;
    for (const Digest& key : keys) {
      made.push_back({key, 0, m_models.artifact(names.at(key), ArtifactKind::code), names.at(key)});
    }
    supply.give(std::move(made));
    const std::scoped_lock lock(m_totals.mutex);
    for (const Digest& key : keys) ++m_totals.compiled[names.at(key)];
  }

  Supplies m_supplies;
  const Shape& m_shape;
  const Models m_models;
  HostStore m_store;
  Totals& m_totals;
};

/// The models that jobs are of, by their popularity.
std::vector<size_t> draw_models(const Shape& shape, size_t jobs) {
  std::vector<double> weights;
  for (size_t i = 0; i < shape.count("models"); ++i) weights.push_back(1.0 / static_cast<double>(i + 1));
  std::discrete_distribution<size_t> draw(weights.begin(), weights.end());
  std::mt19937 random(1);
  std::vector<size_t> models(jobs);
  for (size_t& model : models) model = draw(random);
  return models;
}

nlohmann::ordered_json percentiles(std::vector<double> samples) {
  if (samples.empty()) return nullptr;
  std::ranges::sort(samples);
  const auto at = [&](double share) {
    return samples[static_cast<size_t>(share * static_cast<double>(samples.size() - 1))];
  };
  return {{"count", samples.size()}, {"p50", at(0.5)}, {"p99", at(0.99)}, {"most", samples.back()}};
}

int simulate(const Config& config, const Shape& shape, size_t hosts, double seconds) {
  Totals totals;
  const std::vector<size_t> models = draw_models(shape, hosts / shape.count("ranks") + 1);
  std::map<size_t, size_t> of_model;
  for (size_t host = 0; host < hosts; ++host) ++of_model[models[host / shape.count("ranks")]];
  // Jobs arrive as they like: the gaps are exponential, and end with the time.
  std::mt19937 random(2);
  std::uniform_real_distribution<double> anytime(0, seconds);
  std::vector<double> arrivals(models.size());
  for (double& each : arrivals) each = anytime(random);
  std::ranges::sort(arrivals);

  std::atomic<size_t> next{0};
  std::atomic<double> most_late{0};
  const auto start = Clock::now();
  std::vector<std::thread> threads;
  for (size_t i = 0; i < shape.count("threads"); ++i) {
    threads.emplace_back([&] {
      for (size_t host = next++; host < hosts; host = next++) {
        const double due = arrivals[host / shape.count("ranks")];
        std::this_thread::sleep_until(start +
                                      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due)));
        const double late = std::chrono::duration<double>(Clock::now() - start).count() - due;
        if (late > most_late) most_late = late;
        Host one(config, shape, totals);
        for (size_t program = 0; program < shape.count("programs"); ++program) {
          one.build(models[host / shape.count("ranks")], program);
        }
      }
    });
  }
  for (std::thread& each : threads) each.join();
  size_t compilations = 0;
  for (const auto& [name, times] : totals.compiled) compilations += times;
  size_t most = 0;
  for (const auto& [model, count] : of_model) most = std::max(most, count);
  const nlohmann::ordered_json result = {{"hosts", hosts},
                                         {"seconds", std::chrono::duration<double>(Clock::now() - start).count()},
                                         {"late_s", most_late.load()},
                                         {"models_met", of_model.size()},
                                         {"hosts_of_the_first_model", most},
                                         {"found_ms", percentiles(totals.found_ms)},
                                         {"built_ms", percentiles(totals.built_ms)},
                                         {"kernels", totals.compiled.size()},
                                         {"compilations", compilations},
                                         {"keys_asked", totals.keys_asked.load()},
                                         {"entries_found", totals.entries_found.load()},
                                         {"entries_written", totals.entries_written.load()},
                                         {"entries_dropped", totals.entries_dropped.load()},
                                         {"searches_failed", totals.searches_failed.load()}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

int run(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: fleet_arrivals URL KEYS HOSTS SECONDS [name=value…]\n");
    return 2;
  }
  Shape shape;
  for (int i = 5; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    const auto known = shape.values.find(text.substr(0, equals));
    if (equals == std::string::npos || known == shape.values.end()) {
      std::fprintf(stderr, "fleet_arrivals: no setting %s\n", argv[i]);
      return 2;
    }
    known->second = std::atof(text.c_str() + equals + 1);
  }
  spdlog::set_level(spdlog::level::off);  // what fails is counted
  Config config;
  config.cache_directory = std::string(argv[2]) + "/no cache";
  config.cache_remote = argv[1];
  config.remote_budget_ms = shape.count("budget_ms");
  config.remote_signing_key = std::string(argv[2]) + "/kiln.key";
  config.packs_trust = argv[2];
  return simulate(config, shape, static_cast<size_t>(std::atoll(argv[3])), std::atof(argv[4]));
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::run(argc, argv); }
