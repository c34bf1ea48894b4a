#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "backends/cpu/features.h"
#include "backends/cpu/runtime/runtime.h"
#include "tests/conformance/sealed_code.h"
#include "tests/stand_ins/amx/tile_emulator.h"

namespace kiln::cpu {

/// What works in tests also where the host lacks it.
inline constexpr uint64_t k_emulated = bit(Feature::amx_tile) | bit(Feature::amx_bf16) | bit(Feature::amx_int8);

/// An image that was loaded as a client loads it.
class LoadedImage {
 public:
  explicit LoadedImage(Image image) : m_code(image.code) {
    if ((image.features & ~host_features() & k_emulated) != 0) {
      stand_ins::emulate_amx();
      image.features &= ~k_emulated;
    }
    auto loaded = load_image(image, m_code.bytes());
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    if (loaded.ok()) m_executable = std::move(loaded).value();
  }

  /// Runs the whole grid.
  LaunchStatus run(const std::vector<void*>& buffers) const {
    auto status = LaunchStatus::ok;
    std::vector<uint8_t> workspace(m_executable->workspace_bytes() + 64);
    uint8_t* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
    m_executable->run(buffers.data(), aligned, &status, 0, m_executable->tasks(), {});
    return status;
  }
  const HostExecutable& executable() const { return *m_executable; }

 private:
  conformance::SealedCode m_code;
  std::unique_ptr<HostExecutable> m_executable;
};

inline bool host_runs(const CpuTarget& target) { return (target.features & ~host_features()) == 0; }
/// Slowly, where the host itself does not.
inline bool can_emulate(const CpuTarget& target) { return (target.features & ~host_features() & ~k_emulated) == 0; }

}  // namespace kiln::cpu
