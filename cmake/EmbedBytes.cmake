# cmake -DOUT=… -DNAMESPACE=… -DNAME=… -DFILE=… -P EmbedBytes.cmake: a source file with the file's bytes as a
# std::span<const unsigned char> of that name.
file(READ ${FILE} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#include <span>

namespace ${NAMESPACE} {
static const unsigned char k_bytes[] = {${bytes}};
extern const std::span<const unsigned char> ${NAME};
const std::span<const unsigned char> ${NAME}(k_bytes);
}  // namespace ${NAMESPACE}
")
