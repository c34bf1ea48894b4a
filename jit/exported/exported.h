#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/devices.h"
#include "cache/sources/mounted_packs.h"
#include "jit/exported/weights.h"
#include "jit/resolve/sourced_kernels.h"

namespace kiln {

/// A model that was exported: its programs for this host, bound to its weights.
///
/// Threading: immutable; any thread at once. Errors: loading gives all of it or nothing.
class Exported {
 public:
  /// Loads an export that this user or root owns: no daemon, no cache and no configuration is asked. Of the targets it has
  /// kernels for, the best is taken that the host runs.
  /// Errors: not_found; permission_denied for a file that others may write; data_loss for what is damaged, cut or
  /// contradicts itself; failed_precondition for one that is of other targets, or of another build of Kiln; of its
  /// weights as Weights::open says.
  static Expected<std::unique_ptr<Exported>> load(const std::string& path);
  ~Exported();

  std::span<const ExportForm> forms() const { return m_manifest.forms; }
  const std::string& target() const { return m_target; }

  /// Which form takes inputs of these types; their strides are not looked at. Errors: invalid_argument, saying what is
  /// expected.
  Expected<size_t> choose(std::span<const TensorLayout> inputs) const;

  /// Runs a form on the calling thread and, unless `num_threads` is 1, on its OpenMP pool. Pointers are those of the first
  /// elements of inputs and outputs, in the layouts of the form; outputs overlap nothing.
  /// Errors: out_of_range when an index from data was outside its tensor; resource_exhausted without memory.
  Status run(size_t form, std::span<const void* const> inputs, std::span<void* const> outputs,
             uint32_t num_threads) const;

 private:
  struct Bound;

  Exported();
  Status read_manifest(const Pack& pack);
  Status choose_target();
  Status bind(const ExportForm& form);
  Status bind_arguments(const ExportForm& form, Bound& bound) const;
  Status bind_results(const ExportForm& form, Bound& bound) const;
  Status check_place(const ExportForm& form, const ExportPlace& place, uint64_t bytes, DType dtype) const;
  const uint8_t* weights_at(const ExportPlace& place) const { return m_weights.bytes().data() + place.offset; }

  ExportManifest m_manifest;
  std::string m_target;
  OpenDevice m_device;
  CacheDirectory m_copies;  // of no directory: what the pack had
  std::unique_ptr<MountedPacks> m_source;
  std::unique_ptr<SourcedKernels> m_kernels;
  Weights m_weights;
  std::vector<Bound> m_bound;  // the forms' programs
};

}  // namespace kiln
