# kiln_library(NAME SOURCES … DEPENDS …): a static library of one folder.
function(kiln_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC kiln_settings ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE_DEPENDS})
endfunction()

# kiln_embed(TARGET NAMESPACE FILES…): compiles texts of this folder into TARGET (Embed.cmake says under which names).
function(kiln_embed target namespace)
  set(files)
  foreach(file ${ARGN})
    list(APPEND files ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_texts.cc)
  add_custom_command(OUTPUT ${out} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DNAMESPACE=${namespace} "-DFILES=${files}" -P ${PROJECT_SOURCE_DIR}/cmake/Embed.cmake
    DEPENDS ${files} ${PROJECT_SOURCE_DIR}/cmake/Embed.cmake)
  target_sources(${target} PRIVATE ${out})
endfunction()

# A daemon that tunes when the machine is quiet would publish beside a test that counts: tests of that turn it on. Threads that
# wait for each other sleep: there is another test for the processor.
set(KILN_TEST_ENVIRONMENT KILN_AUTOTUNE_MODE=off OMP_WAIT_POLICY=passive)

# What tests themselves do takes less time than their optimisation; the libraries that they test are optimised.
set(KILN_TEST_OPTIONS -O0)

# kiln_test(NAME SOURCES … DEPENDS … [LABELS …]): a GoogleTest program, one CTest entry. Labels say where it runs (and
# kiln_labelled(), below): `unit` (the default) under ASan and UBSan, `concurrent` under TSan, `e2e` and `faults` in the
# plain build.
function(kiln_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${KILN_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE kiln_settings ${ARG_DEPENDS} GTest::gtest GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 900 ENVIRONMENT "${KILN_TEST_ENVIRONMENT}")
  if(KILN_SANITIZE STREQUAL "thread")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp)
  elseif(KILN_SANITIZE STREQUAL "address")
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
      LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp)
  endif()
  if(KILN_SANITIZE)
    # Drivers that are on this host were not built for sanitizers, and some end a process that has one: a loader that
    # has none comes first.
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT_MODIFICATION
      "KILN_LIBRARIES_PATH=path_list_prepend:$<TARGET_FILE_DIR:fake_level_zero_loader>")
    add_dependencies(${name} fake_level_zero_loader)
  endif()
  if(TARGET test_headers)
    target_link_libraries(${name} PRIVATE OpenMP::OpenMP_CXX)  # as the program has that precompiles headers
    target_precompile_headers(${name} REUSE_FROM test_headers)
    # What GCC says of bytes beyond an object is not true of objects from precompiled headers.
    target_compile_options(${name} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>")
  endif()
  kiln_labelled(${name} ${name} ${ARG_LABELS})
endfunction()

option(KILN_SANITIZED_TESTS "build with all else the tests that need run only under sanitizers" ON)

# kiln_labelled(TARGET TEST LABEL…): TEST, which runs TARGET, carries the labels; the target <label>_tests builds all that
# do. What has `unit` or `concurrent` and neither `e2e` nor `faults` needs no plain run besides: it is labelled `sanitized`, too.
function(kiln_labelled target test)
  set(labels ${ARGN})
  if(("unit" IN_LIST labels OR "concurrent" IN_LIST labels) AND NOT "e2e" IN_LIST labels AND NOT "faults" IN_LIST labels)
    list(APPEND labels sanitized)
    if(NOT KILN_SANITIZED_TESTS)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
  endif()
  set_tests_properties(${test} PROPERTIES LABELS "${labels}")
  foreach(label ${labels})
    if(NOT TARGET ${label}_tests)
      add_custom_target(${label}_tests)
    endif()
    add_dependencies(${label}_tests ${target})
  endforeach()
endfunction()

# kiln_fuzzer(NAME SOURCES … DEPENDS … [SEEDS folder…]): a libFuzzer target, run for two seconds by CTest; the libraries
# it names report what of them an input reaches. Without ASan tests/fuzz/driver.cc feeds it seeds and random mutations.
function(kiln_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;SEEDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE kiln_settings ${ARG_DEPENDS})
  if(KILN_SANITIZE STREQUAL "address")
    foreach(target ${name} ${ARG_DEPENDS})
      target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
    endforeach()
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set(found ${CMAKE_CURRENT_BINARY_DIR}/${name}_found)  # libFuzzer adds to the first folder
    file(MAKE_DIRECTORY ${found})
  else()
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/driver.cc)
  endif()
  add_test(NAME ${name} COMMAND ${name} ${found} ${ARG_SEEDS} -max_total_time=2)
  set_tests_properties(${name} PROPERTIES TIMEOUT 120)
  kiln_labelled(${name} ${name} unit fuzz)
endfunction()
