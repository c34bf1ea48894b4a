#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tests/stand_ins/cuda/host_module.h"
#include "tests/stand_ins/cuda/machine.h"
#include "tests/stand_ins/cuda/tensor_map.h"

namespace kiln::cuda_emulator {

/// A kernel's text, compiled once and run under many seeds: each seed is another order of threads and another temper
/// of asynchronous operations (eager, random, as late as allowed).
class Emulation {
 public:
  static constexpr uint64_t k_seeds = 12;

  explicit Emulation(const std::string& text) {
    auto object = compile_for_host(text, "kernel");
    EXPECT_TRUE(object.ok()) << object.status().to_string();
    if (!object.ok()) return;
    auto module = HostModule::load(*object);
    EXPECT_TRUE(module.ok()) << module.status().to_string();
    if (module.ok()) m_module.emplace(*std::move(module));
  }

  std::string run(LaunchShape shape, const std::vector<GlobalBuffer>& buffers, const void* arguments, uint64_t seed) {
    if (!m_module.has_value()) return "not compiled";
    shape.constants = m_module->constants();
    return Machine::launch(shape, buffers, seed, [&] { m_module->call(arguments); });
  }

 private:
  std::optional<HostModule> m_module;
};

template <typename T>
GlobalBuffer buffer_of(std::string name, std::vector<T>& elements, bool output = false) {
  return {std::move(name), reinterpret_cast<uint8_t*>(elements.data()), elements.size() * sizeof(T), !output, output};
}

/// `text` with its one occurrence of `old` replaced.
inline std::string replaced(std::string text, const std::string& old, const std::string& by) {
  const size_t at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  if (at == std::string::npos) return text;
  EXPECT_EQ(text.find(old, at + 1), std::string::npos) << old << " occurs twice";
  return text.replace(at, old.size(), by);
}

}  // namespace kiln::cuda_emulator
