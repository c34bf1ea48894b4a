#include "tests/fuzz/graphs/interpreter.h"

#include <mutex>
#include <unordered_map>

#include "backends/cpu/compile/backend.h"
#include "backends/reference/reference.h"
#include "base/digest.h"

namespace kiln::fuzz {
namespace {

class Specs {
 public:
  void keep(const Digest& digest, const KernelSpec& spec) {
    std::lock_guard lock(m_mutex);
    m_specs.try_emplace(digest, std::make_shared<const KernelSpec>(spec));
  }
  std::shared_ptr<const KernelSpec> find(const Digest& digest) {
    std::lock_guard lock(m_mutex);
    const auto found = m_specs.find(digest);
    return found == m_specs.end() ? nullptr : found->second;
  }

  void clear() {
    std::lock_guard lock(m_mutex);
    m_specs.clear();
  }

 private:
  std::mutex m_mutex;
  std::unordered_map<Digest, std::shared_ptr<const KernelSpec>> m_specs;
};

Specs& specs() {
  static Specs all;
  return all;
}

class Interpreted final : public HostExecutable {
 public:
  explicit Interpreted(std::shared_ptr<const KernelSpec> spec) : m_spec(std::move(spec)) {}
  uint64_t tasks() const override { return 1; }
  uint64_t workspace_bytes() const override { return 0; }
  void run(void* const* buffers, void*, LaunchStatus* status, uint64_t, uint64_t,
           std::span<const int64_t>) const override {
    if (!run_reference(*m_spec, {buffers, m_spec->buffers.size()}).ok()) *status = LaunchStatus::index_out_of_range;
  }

 private:
  std::shared_ptr<const KernelSpec> m_spec;
};

}  // namespace

Expected<Image> InterpreterBackend::compile(const KernelSpec& spec, const Schedule&, const Target&) const {
  Image image;
  image.code = canonical_bytes(spec);
  specs().keep(digest_of(image.code), spec);
  return image;
}

void forget_interpreted() { specs().clear(); }

Expected<std::shared_ptr<const Executable>> load_interpreted(std::span<const uint8_t> code) {
  auto spec = specs().find(digest_of(code));
  if (!spec) return error(StatusCode::not_found, "code of another process");
  return std::shared_ptr<const Executable>(std::make_shared<Interpreted>(std::move(spec)));
}

const CompileBackend* find_backend(std::string_view name) {
  static const cpu::CpuCompileBackend cpu;
  static const InterpreterBackend interpreter;
  for (const CompileBackend* backend : std::array<const CompileBackend*, 2>{&cpu, &interpreter}) {
    if (backend->name() == name) return backend;
  }
  return nullptr;
}

}  // namespace kiln::fuzz
