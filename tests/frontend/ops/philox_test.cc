#include "frontend/kernel/philox.h"

namespace kiln {
namespace {

/// The known answers of Random123 (kat_vectors, philox2x32 with 10 rounds): the first word.
static_assert(philox_word(0, 0) == 0xff1dae59);
static_assert(philox_word(0xffffffff, 0xffffffffffffffff) == 0x2c3f628b);
static_assert(philox_word(0x13198a2e, 0x85a308d3243f6a88) == 0xdd7ce038);

}  // namespace
}  // namespace kiln
