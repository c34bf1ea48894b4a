#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/config/config.h"
#include "base/expected.h"

namespace kiln::cli {

/// The configured interpreter (python.path), else python3, else python in PATH. Errors: not_found.
Expected<std::string> find_python(const Config& config);

struct ProcessResult {
  int exit_status = 0;  // 128 + the signal's number for who was killed
  std::string output;   // its stdout
  std::string errors;   // its stderr, where it was kept
};

/// Whether a program's stderr is this process's or ProcessResult::errors.
enum class Errors : uint8_t { shown, kept };

/// Runs a program to its end with this process's stdin, and these variables set besides its environment.
/// Errors: unavailable when it cannot be started; resource_exhausted when it writes more than 64 megabytes.
Expected<ProcessResult> run_process(const std::vector<std::string>& arguments,
                                    const std::vector<std::pair<std::string, std::string>>& variables,
                                    Errors errors = Errors::shown);

}  // namespace kiln::cli
