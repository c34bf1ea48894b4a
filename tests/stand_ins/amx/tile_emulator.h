#pragma once

namespace kiln::stand_ins {

/// From now on the instructions of AMX (tiles, bf16, signed bytes) work in this process, each by way of a signal and some microseconds,
/// also where the processor has none. What real ones refuse ends the process with a word on stderr: shapes that do not
/// fit, a register that is not configured. Tiles are each thread's own.
/// The pseudo-code of Intel's "64 and IA-32 Architectures Software Developer's Manual", volume 2, says what they do.
void emulate_amx();

}  // namespace kiln::stand_ins
