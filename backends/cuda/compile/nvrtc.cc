#include "backends/cuda/compile/nvrtc.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <regex>
#include <thread>

namespace kiln::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// The vendor's C interface, as far as it is used; it has been so since 11.1 (nvrtc.h).
using Result = int;
using Program = void*;
using Options = std::vector<std::string>;
constexpr Result k_success = 0;
constexpr Result k_invalid_option = 5;
constexpr Result k_cancelled = 16;

// A little longer than it was asked: the library answers a flow callback within some milliseconds.
constexpr auto k_grace = std::chrono::milliseconds(500);

constexpr int k_first_with_cache = 129;  // 12.9; NVRTC's documentation, "Caching"

/// -fmad: a product and a sum are one operation only where the source says so. -w: the prelude has more than one kernel
/// uses. -v: registers and spills, read from the log. --no-cache: what comes out of the driver's cache has no log. All the
/// same always: options are recorded in the cubin.
Options options_for(std::string_view architecture, int version) {
  Options options{fmt::format("--gpu-architecture={}", architecture), "--std=c++17", "--fmad=false", "-w",
                  "--ptxas-options=-v"};
  if (version >= k_first_with_cache) options.emplace_back("--no-cache");
  return options;
}

}  // namespace

struct Nvrtc::Functions {
  Result (*version)(int*, int*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  Result (*create)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  Result (*destroy)(Program*) = nullptr;
  Result (*compile)(Program, int, const char* const*) = nullptr;
  Result (*cubin_size)(Program, size_t*) = nullptr;
  Result (*cubin)(Program, char*) = nullptr;
  Result (*log_size)(Program, size_t*) = nullptr;
  Result (*log)(Program, char*) = nullptr;
  Result (*set_flow_callback)(Program, int (*)(void*, void*), void*) = nullptr;  // since 12.8; null before

  Status resolve(const Library& library) {
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcVersion", version));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcGetErrorString", error_string));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcCreateProgram", create));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcDestroyProgram", destroy));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcCompileProgram", compile));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcGetCUBINSize", cubin_size));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcGetCUBIN", cubin));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcGetProgramLogSize", log_size));
    KILN_RETURN_IF_ERROR(library.resolve("nvrtcGetProgramLog", log));
    if (!library.resolve("nvrtcSetFlowCallback", set_flow_callback).ok()) set_flow_callback = nullptr;
    return {};
  }

  std::string log_of(Program program) const {
    size_t bytes = 0;
    if (log_size(program, &bytes) != k_success || bytes == 0) return "";
    std::string text(bytes, '\0');
    if (log(program, text.data()) != k_success) return "";
    text.resize(bytes - 1);
    return text;
  }

  Expected<Compiled> run(const std::string& source, const Options& options, Clock::time_point deadline) const {
    Program program = nullptr;
    if (const Result result = create(&program, source.c_str(), "kernel.cu", 0, nullptr, nullptr); result != k_success) {
      return error(StatusCode::internal, "nvrtc: {}", error_string(result));
    }
    auto compiled = finish(program, options, deadline);
    destroy(&program);
    return compiled;
  }

  Expected<Compiled> finish(Program program, const Options& options, Clock::time_point deadline) const {
    if (set_flow_callback != nullptr) {
      const auto is_late = [](void* when, void*) -> int {
        return Clock::now() > *static_cast<Clock::time_point*>(when);
      };
      set_flow_callback(program, is_late, &deadline);
    }
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    const Result result = compile(program, static_cast<int>(texts.size()), texts.data());
    const std::string text = log_of(program);
    if (result == k_cancelled) return error(StatusCode::deadline_exceeded, "nvrtc: stopped at its deadline");
    if (result == k_invalid_option) {
      return error(StatusCode::unimplemented, "nvrtc: {}: {}", options.front(),
                   text.empty() ? error_string(result) : text);
    }
    if (result != k_success) return error(StatusCode::internal, "nvrtc: {}: {}", error_string(result), text);
    Compiled compiled;
    KILN_ASSIGN_OR_RETURN(compiled.resources, resources_of_log(text));
    compiled.complaint = complaints_of_log(text);
    size_t bytes = 0;
    if (const Result size = cubin_size(program, &bytes); size != k_success || bytes == 0) {
      return error(StatusCode::internal, "nvrtc: no cubin: {}", error_string(size));
    }
    compiled.cubin.resize(bytes);
    if (const Result copy = cubin(program, reinterpret_cast<char*>(compiled.cubin.data())); copy != k_success) {
      return error(StatusCode::internal, "nvrtc: no cubin: {}", error_string(copy));
    }
    return compiled;
  }
};

const Expected<Nvrtc>& Nvrtc::of_process() {
  static const Expected<Nvrtc> nvrtc = open(search_path());
  return nvrtc;
}

Expected<Nvrtc> Nvrtc::open(const SearchPath& search) {
  Nvrtc nvrtc;
  KILN_ASSIGN_OR_RETURN(nvrtc.m_library, Library::open(search, {"libnvrtc.so.13", "libnvrtc.so.12"}));
  open_beside(nvrtc.m_library.path(), "libnvrtc-builtins.so");
  auto functions = std::make_shared<Functions>();
  KILN_RETURN_IF_ERROR(functions->resolve(nvrtc.m_library));
  int major = 0, minor = 0;
  if (functions->version(&major, &minor) != k_success || major < 12) {
    return error(StatusCode::failed_precondition, "{} is version {}.{}, 12.0 is needed", nvrtc.m_library.path(), major,
                 minor);
  }
  nvrtc.m_version = 10 * major + minor;
  nvrtc.m_functions = std::move(functions);
  return nvrtc;
}

std::string Nvrtc::identity() const {
  return fmt::format("nvrtc {}.{} {}", m_version / 10, m_version % 10, m_library.build_id());
}

// A cubin of CUDA n.x loads with any driver of CUDA n (minor version compatibility, CUDA's deployment guide).
uint32_t Nvrtc::least_driver() const { return static_cast<uint32_t>(m_version / 10 * 1000); }

Expected<Compiled> Nvrtc::compile(const std::string& source, std::string_view architecture,
                                  uint64_t deadline_ms) const {
  struct Job {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Expected<Compiled>> result;
  };
  const auto job = std::make_shared<Job>();
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(deadline_ms);
  std::thread([job, functions = m_functions, source, options = options_for(architecture, m_version), deadline] {
    auto result = functions->run(source, options, deadline);
    const std::lock_guard lock(job->mutex);
    job->result = std::move(result);
    job->changed.notify_all();
  }).detach();
  std::unique_lock lock(job->mutex);
  if (!job->changed.wait_until(lock, deadline + k_grace, [&] { return job->result.has_value(); })) {
    return error(StatusCode::deadline_exceeded, "nvrtc: no answer within {} ms", deadline_ms);
  }
  return *std::move(job->result);
}

Expected<Resources> resources_of_log(std::string_view log) {
  const std::string text(log);
  std::smatch match;
  Resources resources;
  const auto number = [&](int group) { return static_cast<uint32_t>(std::stoul(match[static_cast<size_t>(group)])); };
  if (!std::regex_search(text, match, std::regex("Used (\\d+) registers"))) {
    return error(StatusCode::internal, "nvrtc: the log names no kernel: {}", text);
  }
  resources.registers = number(1);
  if (std::regex_search(text, match, std::regex("(\\d+) bytes smem"))) resources.static_shared_bytes = number(1);
  const std::regex spills("(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill loads");
  if (std::regex_search(text, match, spills)) {
    resources.stack_bytes = number(1);
    resources.spill_store_bytes = number(2);
    resources.spill_load_bytes = number(3);
  }
  return resources;
}

std::string complaints_of_log(std::string_view log) {
  std::string complaints;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    if (line.find("(C75") != std::string_view::npos)
      complaints += std::string(complaints.empty() ? "" : "; ") + std::string(line);
    log.remove_prefix(std::min(end + 1, log.size()));
  }
  return complaints;
}

}  // namespace kiln::cuda
