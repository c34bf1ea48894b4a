#pragma once

#include <span>

namespace kiln {

/// What kiln-worker does for `--disassemble CACHE_DIRECTORY DIGEST BACKEND TARGET`: writes the code artifact of that digest
/// to stdout as assembly. Gives the exit status: 0; 1 where it cannot be had, with a sentence on stderr; 2 for other arguments.
int disassemble_main(std::span<const char* const> arguments);

}  // namespace kiln
