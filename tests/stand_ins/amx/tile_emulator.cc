#include "tests/stand_ins/amx/tile_emulator.h"

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>

namespace kiln::stand_ins {
namespace {

constexpr size_t k_tiles = 8, k_rows = 16, k_row_bytes = 64;

struct Configuration {
  uint8_t palette = 0, start_row = 0;
  std::array<uint8_t, 14> reserved{};
  std::array<uint16_t, 16> row_bytes{};
  std::array<uint8_t, 16> rows{};
};
static_assert(sizeof(Configuration) == 64);

struct Tile {
  std::array<std::array<uint8_t, k_row_bytes>, k_rows> rows{};
};

thread_local Configuration t_configuration;
thread_local std::array<Tile, k_tiles> t_tiles;

[[noreturn]] void refuse(std::string_view why) {
  (void)!write(STDERR_FILENO, "AMX: ", 5);
  (void)!write(STDERR_FILENO, why.data(), why.size());
  (void)!write(STDERR_FILENO, "\n", 1);
  std::abort();
}

/// A VEX instruction of three prefix bytes with a ModRM, of the map 0F38.
class Instruction {
 public:
  Instruction(const uint8_t* code, const greg_t* registers) : m_code(code), m_registers(registers) {
    m_is_known = code[0] == 0xC4 && (code[1] & 0x1F) == 2 && (code[2] & 0x84) == 0;
    if (!m_is_known) return;
    m_modrm = code[4];
    m_length = 5;
    if (has_memory()) find_address();
  }

  bool is_known() const { return m_is_known; }
  uint8_t opcode() const { return m_code[3]; }
  enum Prefix : uint8_t { none = 0, p66 = 1, pF3 = 2, pF2 = 3 };
  uint8_t prefix() const { return m_code[2] & 3; }
  bool has_memory() const { return m_modrm >> 6 != 3; }
  size_t reg() const { return m_modrm >> 3 & 7; }
  size_t rm() const { return m_modrm & 7; }
  size_t vvvv() const { return ~(m_code[2] >> 3) & 7; }
  size_t length() const { return m_length; }
  uint8_t* address() const { return row(1); }
  /// Of the rows of a tile: base, index by scale.
  uint8_t* row(size_t number) const {
    const int64_t address = m_base + m_index * static_cast<int64_t>(number);
    return reinterpret_cast<uint8_t*>(address);  // NOLINT(performance-no-int-to-ptr): it comes from registers
  }

 private:
  int64_t general(uint8_t number) const {
    constexpr std::array k_order{REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                 REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return m_registers[k_order.at(number)];
  }
  template <typename T>
  int64_t displacement() {
    T value = 0;
    std::memcpy(&value, m_code + m_length, sizeof value);
    m_length += sizeof value;
    return value;
  }

  void find_address() {
    const uint8_t mode = m_modrm >> 6, rm = m_modrm & 7;
    const auto high = [&](int bit) { return static_cast<uint8_t>((m_code[1] >> bit & 1) == 0 ? 8 : 0); };
    bool has_base = true;
    if (rm == 4) {
      const uint8_t sib = m_code[m_length++];
      const auto index = static_cast<uint8_t>((sib >> 3 & 7) | high(6)), base = static_cast<uint8_t>(sib & 7);
      if (index != 4) m_index = general(index) * (int64_t{1} << (sib >> 6));
      has_base = mode != 0 || base != 5;
      if (has_base) m_base = general(base | high(5));
    } else {
      has_base = mode != 0 || rm != 5;
      if (has_base) m_base = general(rm | high(5));
    }
    if (mode == 1) m_base += displacement<int8_t>();
    if (mode == 2 || !has_base) m_base += displacement<int32_t>();
    if (!has_base && rm == 5) m_base += reinterpret_cast<int64_t>(m_code) + static_cast<int64_t>(m_length);
  }

  const uint8_t* m_code;
  const greg_t* m_registers;
  bool m_is_known = false;
  uint8_t m_modrm = 0;
  size_t m_length = 0;
  int64_t m_base = 0, m_index = 0;
};

size_t configured(size_t tile) {
  if (t_configuration.palette != 1) refuse("no configuration");
  if (t_configuration.rows[tile] == 0 || t_configuration.row_bytes[tile] == 0) refuse("a register without a shape");
  return tile;
}

void load_configuration(const uint8_t* from) {
  std::memcpy(&t_configuration, from, sizeof t_configuration);
  t_tiles = {};
  if (t_configuration.palette == 0) t_configuration = {};
  if (t_configuration.palette > 1) refuse("no such palette");
  for (size_t tile = 0; tile < 16; ++tile) {
    const size_t rows = t_configuration.rows[tile], bytes = t_configuration.row_bytes[tile];
    if (rows > k_rows || bytes > k_row_bytes || (tile >= k_tiles && rows + bytes != 0)) refuse("an impossible shape");
  }
}

void load(const Instruction& at) {
  const size_t tile = configured(at.reg());
  t_tiles[tile] = {};
  for (size_t row = 0; row < t_configuration.rows[tile]; ++row) {
    std::memcpy(t_tiles[tile].rows[row].data(), at.row(row), t_configuration.row_bytes[tile]);
  }
}

void store(const Instruction& at) {
  const size_t tile = configured(at.reg());
  for (size_t row = 0; row < t_configuration.rows[tile]; ++row) {
    std::memcpy(at.row(row), t_tiles[tile].rows[row].data(), t_configuration.row_bytes[tile]);
  }
}

template <typename T>
T element(const Tile& tile, size_t row, size_t column) {
  T value;
  std::memcpy(&value, tile.rows[row].data() + column * sizeof value, sizeof value);
  return value;
}

/// Denormals count as zeros.
float from_bf16(uint16_t bits) {
  const bool is_denormal = (bits & 0x7F80) == 0;
  return std::bit_cast<float>(static_cast<uint32_t>(is_denormal ? bits & 0x8000 : bits) << 16);
}

/// C becomes `add(C's element, row of A, its number, B, its column, steps)` in each of its elements, of type T.
template <typename T, typename Add>
void multiply(const Instruction& at, const Add& add) {
  const size_t c = configured(at.reg()), a = configured(at.rm()), b = configured(at.vvvv());
  const auto& rows = t_configuration.rows;
  const auto& bytes = t_configuration.row_bytes;
  if (rows[c] != rows[a] || bytes[c] != bytes[b] || bytes[a] != 4 * rows[b]) refuse("shapes that do not fit");
  if (c == a || c == b || a == b) refuse("a register twice");
  for (size_t m = 0; m < rows[c]; ++m) {
    for (size_t n = 0; n < bytes[c] / sizeof(T); ++n) {
      const T sum = add(element<T>(t_tiles[c], m, n), t_tiles[a], m, t_tiles[b], n, rows[b]);
      std::memcpy(t_tiles[c].rows[m].data() + n * sizeof sum, &sum, sizeof sum);
    }
  }
}

float add_bf16(float sum, const Tile& a, size_t m, const Tile& b, size_t n, size_t steps) {
  std::array<float, 2> sums{};
  for (size_t k = 0; k < steps; ++k) {
    for (size_t i = 0; i < 2; ++i) {
      sums[i] += from_bf16(element<uint16_t>(a, m, 2 * k + i)) * from_bf16(element<uint16_t>(b, k, 2 * n + i));
    }
  }
  return sum + (sums[0] + sums[1]);
}

/// Wraps.
uint32_t add_signed_bytes(uint32_t sum, const Tile& a, size_t m, const Tile& b, size_t n, size_t steps) {
  for (size_t k = 0; k < steps; ++k) {
    for (size_t i = 0; i < 4; ++i) {
      sum += static_cast<uint32_t>(element<int8_t>(a, m, 4 * k + i) * element<int8_t>(b, k, 4 * n + i));
    }
  }
  return sum;
}

/// False for what is no instruction of AMX.
bool obey(const Instruction& at) {
  if (!at.is_known()) return false;
  switch (at.opcode()) {
    case 0x49:
      if (!at.has_memory() && at.prefix() == Instruction::none) {
        load_configuration(reinterpret_cast<const uint8_t*>(&t_configuration));  // tilerelease
        t_configuration = {};
      } else if (!at.has_memory() && at.prefix() == Instruction::pF2) {
        t_tiles[configured(at.reg())] = {};
      } else if (at.has_memory() && at.prefix() == Instruction::none) {
        load_configuration(at.address());
      } else if (at.has_memory() && at.prefix() == Instruction::p66) {
        std::memcpy(at.address(), &t_configuration, sizeof t_configuration);
      } else {
        return false;
      }
      return true;
    case 0x4B:
      if (at.prefix() == Instruction::none) return false;
      at.prefix() == Instruction::pF3 ? store(at) : load(at);
      return true;
    case 0x5C:
      if (at.has_memory() || at.prefix() != Instruction::pF3) return false;
      multiply<float>(at, add_bf16);
      return true;
    case 0x5E:
      if (at.has_memory() || at.prefix() != Instruction::pF2) return false;
      multiply<uint32_t>(at, add_signed_bytes);
      return true;
    default:
      return false;
  }
}

void on_illegal_instruction(int /*signal*/, siginfo_t* /*info*/, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const greg_t code = registers[REG_RIP];
  const Instruction at(reinterpret_cast<const uint8_t*>(code), registers);  // NOLINT(performance-no-int-to-ptr)
  if (!obey(at)) refuse("an illegal instruction that is none of AMX's");
  registers[REG_RIP] += static_cast<greg_t>(at.length());
}

}  // namespace

void emulate_amx() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
  });
}

}  // namespace kiln::stand_ins
