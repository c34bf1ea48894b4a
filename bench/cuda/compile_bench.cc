// What NVRTC makes of the chosen set, for every target: registers, shared memory, spills, and how long it took. Needs no
// device. `compile_bench OUT.json`; `compile_bench --source NAME TARGET` prints a kernel's text instead.
#include <fmt/format.h>
#include <time.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "backends/cuda/compile/backend.h"
#include "backends/cuda/compile/texts.h"
#include "tests/backends/cuda/chosen_attention.h"
#include "tests/backends/cuda/chosen_gemms.h"
#include "tests/backends/cuda/chosen_loops.h"

namespace {

using namespace kiln;
using Json = nlohmann::ordered_json;

double wall_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double processor_ms() { return 1e3 * static_cast<double>(clock()) / CLOCKS_PER_SEC; }

std::string today() {
  const time_t now = time(nullptr);
  char text[16] = {};
  tm parts{};
  strftime(text, sizeof text, "%Y-%m-%d", localtime_r(&now, &parts));
  return text;
}

struct Timed {
  Expected<Image> image;
  double wall_ms, processor_ms;
};

Timed compile_timed(const cuda::CudaCompileBackend& backend, const KernelSpec& spec, const Schedule& schedule,
                    const Target& target) {
  const double wall = wall_ms(), processor = processor_ms();
  auto image = backend.compile(spec, schedule, target);
  return {std::move(image), wall_ms() - wall, processor_ms() - processor};
}

std::vector<cuda::NamedSpec> chosen_set() {
  std::vector<cuda::NamedSpec> specs = cuda::chosen_loops();
  for (auto& gemm : cuda::chosen_gemms()) specs.push_back(std::move(gemm));
  for (auto& attention : cuda::chosen_attention()) specs.push_back(std::move(attention));
  return specs;
}

/// One row for each kernel of the image: a gemm may hold loops that pack, and one more for addresses the best cannot take.
void add_rows(Json& rows, const cuda::NamedSpec& named, const Target& target, const Schedule& schedule,
              const Timed& timed) {
  const auto record = cuda::unpack(timed.image->code);
  bool is_best = true;
  for (const cuda::KernelRecord& kernel : record->kernels) {
    const std::string form = kernel.is_followed ? "packing" : is_best ? schedule.description : "for any address";
    is_best = is_best && kernel.is_followed;
    const cuda::Resources& resources = kernel.resources;
    rows.push_back({{"case", fmt::format("{} {}: {}", named.name, target.name, form)},
                    {"unit", "registers"},
                    {"ours", resources.registers},
                    {"own",
                     {{"shared KiB", (kernel.shared_bytes + resources.static_shared_bytes) >> 10},
                      {"spill bytes", resources.spill_store_bytes + resources.spill_load_bytes},
                      {"stack bytes", resources.stack_bytes},
                      {"cubin KiB", kernel.cubin_bytes >> 10},
                      {"image wall ms", std::round(timed.wall_ms)},
                      {"image processor ms", std::round(timed.processor_ms)}}}});
  }
}

int print_source(std::string_view name, const std::string& target_name) {
  const Target target{"cuda", target_name};
  for (const cuda::NamedSpec& named : chosen_set()) {
    if (named.name != name) continue;
    const auto schedules = default_candidates(cuda::CudaCompileBackend(), named.spec, target);
    const auto source = cuda::CudaCompileBackend::source(named.spec, schedules.front(), target);
    if (!source.ok()) {
      std::cerr << source.status().to_string() << "\n";
      return 1;
    }
    for (const cuda::KernelSource& kernel : source->kernels) {
      std::cout << cuda::prelude_text << cuda::scalar_text << kernel.text;
    }
    return 0;
  }
  std::cerr << "no spec is called " << name << "\n";
  return 2;
}

int run(const char* path) {
  const cuda::CudaCompileBackend backend;
  const auto specs = chosen_set();
  Json rows = Json::array();
  // The first compilation of the process opens the library and pays for its start.
  const double begun = wall_ms(), begun_processor = processor_ms();
  if (!cuda::Nvrtc::of_process().ok()) {
    std::cerr << cuda::Nvrtc::of_process().status().to_string() << "\n";
    return 3;
  }
  Json first;
  size_t refused = 0;
  for (const cuda::NamedSpec& named : specs) {
    for (const Target& target : backend.targets()) {
      const Schedule schedule = default_candidates(backend, named.spec, target).front();
      const Timed timed = compile_timed(backend, named.spec, schedule, target);
      if (!timed.image.ok()) {
        std::cerr << named.name << " " << target.name << ": " << timed.image.status().to_string() << "\n";
        ++refused;
        continue;
      }
      if (first.is_null()) {
        first = {{"spec", named.name},
                 {"target", target.name},
                 {"wall ms", std::round(wall_ms() - begun)},
                 {"processor ms", std::round(processor_ms() - begun_processor)}};
      }
      add_rows(rows, named, target, schedule, timed);
    }
  }
  const Json result = {
      {"bench", "cuda_compile"},
      {"host", {{"date", today()}, {"versions", {{"compiler", cuda::Nvrtc::of_process()->identity()}}}}},
      {"note",
       "The chosen set, first candidate of each spec and target. No device: registers and spills, not speed. A gemm's "
       "image has a second kernel where the first needs aligned addresses."},
      {"rows", rows},
      {"summary", {{"refused", refused}, {"first kernel of a process", first}}}};
  std::ofstream(path) << result.dump(1) << "\n";
  fmt::print("{} kernels, {} refused, first usable kernel after {} ms\n", rows.size(), refused,
             first["wall ms"].dump());
  return refused == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 4 && std::strcmp(arguments[1], "--source") == 0) return print_source(arguments[2], arguments[3]);
  if (count == 2) return run(arguments[1]);
  std::cerr << "usage: compile_bench OUT.json | --source NAME TARGET\n";
  return 2;
}
