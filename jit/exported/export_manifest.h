#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/expected.h"
#include "jit/run/program.h"

namespace kiln {

/// Version of what a manifest's fields mean.
inline constexpr uint32_t k_export_version = 1;
/// Weights are checked in pieces of this size, by all threads at once.
inline constexpr uint64_t k_weights_piece_bytes = uint64_t{1} << 20;

/// A tensor that the caller gives, or is given.
struct ExportTensor {
  std::string name;
  TensorLayout layout;  // with strides
};

/// Bytes of the caller's input, of the file of weights, or of an output of the program.
struct ExportPlace {
  enum class Origin : uint8_t { input, weights, output };
  Origin origin = Origin::input;
  uint32_t index = 0;  // of the input or output
  uint64_t offset = 0;
};

/// Where an output of the caller's is taken from, and how it lies there: a view.
struct ExportResult {
  ExportPlace place;
  std::vector<int64_t> strides;
};

struct ExportProgram {
  std::string target;
  Digest program;  // an artifact of the export
};

/// The model for inputs of known shapes.
struct ExportForm {
  std::vector<ExportTensor> inputs, outputs;
  std::vector<ExportPlace> arguments;  // of each input of the program, where it lies
  std::vector<ExportResult> results;   // of each output of the caller's
  std::vector<ExportProgram> programs;
};

struct ExportWeights {
  std::string file;  // in the export's folder
  uint64_t bytes = 0;
  std::vector<uint64_t> checksums;  // checksum_of each piece
};

/// What an export says of itself.
struct ExportManifest {
  // generator_build_id of the backend, and k_program_version: what is of others may be called, or read, otherwise.
  std::string generator;
  uint32_t program_version = 0;
  ExportWeights weights;
  std::vector<ExportForm> forms;
};

/// Bytes from the layout's first element to its last. Errors: data_loss for negative or absurd numbers.
Expected<uint64_t> span_of(const TensorLayout& layout);

std::string to_json(const ExportManifest& manifest);
/// Errors: data_loss for what is no manifest, or contradicts itself; failed_precondition for one of another version;
/// resource_exhausted beyond limits::k_export_forms.
Expected<ExportManifest> manifest_from_json(std::string_view json);

/// The forms of a manifest to be, each with the graph it is to be compiled from: what a client hands over to be exported.
struct ExportRequest {
  struct Graph {
    std::string text;
    std::vector<int64_t> symbol_values;
  };
  ExportManifest manifest;    // its forms lack programs
  std::vector<Graph> graphs;  // of the forms
  std::vector<std::string> targets;
  uint32_t deadline_ms = 0;
};
/// Errors: invalid_argument; as above.
Expected<ExportRequest> request_from_json(std::string_view json);

}  // namespace kiln
