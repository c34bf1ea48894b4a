# One interface target carries what every target of the project is compiled with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(KILN_SANITIZE "" CACHE STRING "empty, 'address' (with undefined, and with Clang libFuzzer's coverage), or 'thread'")

add_library(kiln_settings INTERFACE)
target_include_directories(kiln_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(kiln_settings INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers)
if(KILN_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC's flow analysis loses its way in instrumented code: it warns of std::variant itself.
  target_compile_options(kiln_settings INTERFACE -Wno-maybe-uninitialized)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # libstdc++ 12 calls what C++17 deprecated; glibc's <sys/platform/x86.h> says _Bool, which Clang has in C alone.
  target_compile_options(kiln_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
  target_compile_definitions(kiln_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:_Bool=bool>)
endif()
if(KILN_SANITIZE STREQUAL "address")
  target_compile_options(kiln_settings INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
    $<$<CXX_COMPILER_ID:Clang>:-fsanitize=fuzzer-no-link>)
  target_link_options(kiln_settings INTERFACE -fsanitize=address,undefined)
elseif(KILN_SANITIZE STREQUAL "thread")
  # TSan does not model the fences in Asio's reference counts, and GCC warns of each.
  target_compile_options(kiln_settings INTERFACE -fsanitize=thread -fno-omit-frame-pointer -Wno-tsan)
  target_link_options(kiln_settings INTERFACE -fsanitize=thread)
endif()

# Where base/fault.h has effect: the targets that ask for it, and their tests.
option(KILN_FAULT_POINTS "compile in the fault points that tests set off by KILN_FAULTS" OFF)
function(kiln_fault_points target)
  if(KILN_FAULT_POINTS)
    target_compile_definitions(${target} PRIVATE KILN_FAULT_POINTS)
  endif()
endfunction()

find_program(KILN_CCACHE ccache)
if(KILN_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${KILN_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KILN_CCACHE})
endif()
find_program(KILN_LLD NAMES ld.lld-19 ld.lld)
if(KILN_LLD)
  add_link_options(-fuse-ld=lld)
  if(KILN_LLD MATCHES "ld.lld-19")
    add_link_options(-B/usr/lib/llvm-19/bin)
  endif()
endif()
