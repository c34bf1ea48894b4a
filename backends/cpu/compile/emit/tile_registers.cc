#include "backends/cpu/compile/emit/tile_registers.h"

namespace kiln::cpu {

llvm::Value* TileRegisters::shapes(const std::array<int64_t, k_count>& rows) {
  std::array<uint8_t, k_configuration_bytes> bytes{1};  // the palette
  for (size_t tile = 0; tile < rows.size(); ++tile) {
    if (rows[tile] != 0) bytes[16 + 2 * tile] = k_row_bytes;
    bytes[48 + tile] = static_cast<uint8_t>(rows[tile]);
  }
  auto* value = llvm::ConstantDataArray::get(e.context(), bytes);
  auto* constant = new llvm::GlobalVariable(e.module(), value->getType(), /*isConstant=*/true,
                                            llvm::GlobalValue::PrivateLinkage, value);
  constant->setAlignment(llvm::Align(k_configuration_bytes));
  return constant;
}

}  // namespace kiln::cpu
