# One interface target carries what every target of the project is compiled with.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

set(KILN_SANITIZE "" CACHE STRING "empty, or with Clang 'address' (with undefined, and libFuzzer) or 'thread'")
if(KILN_SANITIZE AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "KILN_SANITIZE=${KILN_SANITIZE} is for Clang, as in the presets asan and tsan")
endif()

add_library(kiln_settings INTERFACE)
target_include_directories(kiln_settings INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(kiln_settings INTERFACE -Wall -Wextra -Werror -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  # libstdc++ 12 calls what C++17 deprecated; glibc's <sys/platform/x86.h> says _Bool, which Clang has in C alone;
  # Debian's Boost does not see that this Clang has coroutines.
  target_compile_options(kiln_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-deprecated-declarations>)
  target_compile_definitions(kiln_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:_Bool=bool;BOOST_ASIO_HAS_CO_AWAIT;BOOST_ASIO_HAS_STD_COROUTINE>)
endif()
if(KILN_SANITIZE STREQUAL "address")
  # Kernels that were made at run time have no type before their code, where the check of functions would read it. What the
  # checks of null and of objects' sizes find, ASan finds as well; they are a twelfth of what the build takes.
  set(sanitize -fsanitize=address,undefined -fno-sanitize=function,null,object-size)
  target_compile_options(kiln_settings INTERFACE -fno-sanitize-recover=undefined)
elseif(KILN_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
endif()
if(KILN_SANITIZE)
  target_compile_options(kiln_settings INTERFACE ${sanitize} -fno-omit-frame-pointer)
  target_link_options(kiln_settings INTERFACE ${sanitize})
  target_compile_definitions(kiln_settings INTERFACE KILN_IS_SANITIZED)
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
