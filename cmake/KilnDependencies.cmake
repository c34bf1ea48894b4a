# Every outside library the project builds with, found once. Vendor GPU libraries are opened at run time instead.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(GTest REQUIRED)
option(KILN_STATIC_LLVM "link what is used of LLVM into the worker, for hosts that have no LLVM" OFF)
find_package(LLVM 19.1 REQUIRED CONFIG PATHS /usr/lib/llvm-19)  # before RocksDB, whose way of finding zstd hides LLVM's
find_package(RocksDB REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
find_program(KILN_FLATC flatc REQUIRED)
find_package(SPIRV-Tools REQUIRED)
find_library(KILN_SECCOMP seccomp REQUIRED)
find_library(KILN_HIREDIS hiredis REQUIRED)
find_package(CURL REQUIRED)

# kiln_flatbuffers(TARGET SCHEMA…): generates <folder>/<name>_generated.h into the build tree. The target
# generated_headers makes all of them, for who reads sources without a build (tools/tidy).
add_custom_target(generated_headers)
function(kiln_flatbuffers target)
  foreach(schema ${ARGN})
    get_filename_component(name ${schema} NAME_WE)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    set(out ${PROJECT_BINARY_DIR}/${folder}/${name}_generated.h)
    add_custom_command(OUTPUT ${out}
      COMMAND ${KILN_FLATC} --cpp --scoped-enums --gen-object-api -o ${PROJECT_BINARY_DIR}/${folder} ${CMAKE_CURRENT_SOURCE_DIR}/${schema}
      DEPENDS ${schema})
    target_sources(${target} PRIVATE ${out})
    add_custom_target(${target}_${name} DEPENDS ${out})
    add_dependencies(generated_headers ${target}_${name})
  endforeach()
endfunction()
