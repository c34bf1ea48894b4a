# What `cmake --install` leaves where. Components: kiln (the programs), libkiln (the library), libkiln-dev (what building
# against it needs), python (what the wheel holds besides its Python; installed only when it is asked for).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(KILN_LIBEXECDIR ${CMAKE_INSTALL_LIBEXECDIR}/kiln)
foreach(component kiln libkiln libkiln-dev)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${component} COMPONENT ${component}
    RENAME copyright)
endforeach()

# What somebody who uses Kiln needs, without its tests and benchmarks: programs, libkiln, the Python package.
add_custom_target(product)

# kiln_program(TARGET [COMMAND]): an executable of the product. A COMMAND is for people; the others are looked for beside one
# another, and by commands and libkiln in KILN_LIBEXECDIR.
function(kiln_program target)
  cmake_parse_arguments(ARG "COMMAND" "" "" ${ARGN})
  set(folder ${KILN_LIBEXECDIR})
  if(ARG_COMMAND)
    set(folder ${CMAKE_INSTALL_BINDIR})
  endif()
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  add_dependencies(product ${target})
  install(TARGETS ${target} RUNTIME DESTINATION ${folder} COMPONENT kiln)
  install(TARGETS ${target} RUNTIME DESTINATION kiln/bin COMPONENT python EXCLUDE_FROM_ALL)
  if(SKBUILD)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
endfunction()

# The wheel's programs bring the OpenMP runtime along, which a host without a compiler may not have. In a process with torch
# the extension and libkiln use torch's: two would be two pools of threads.
if(OpenMP_gomp_LIBRARY)
  get_filename_component(gomp ${OpenMP_gomp_LIBRARY} REALPATH)
  install(PROGRAMS ${gomp} DESTINATION kiln/bin COMPONENT python EXCLUDE_FROM_ALL RENAME libgomp.so.1)
endif()

# kiln_public_library(TARGET HEADERS…): a library that other projects find, as Kiln::TARGET by CMake and as TARGET by pkg-config.
function(kiln_public_library target)
  add_dependencies(product ${target})
  target_include_directories(${target} PUBLIC $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  install(TARGETS ${target} EXPORT kiln_targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT libkiln NAMELINK_COMPONENT libkiln-dev)
  install(FILES ${ARGN} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT libkiln-dev)

  # The library needs no other package, so that the file of its targets is all that there is to configure.
  set(config ${CMAKE_INSTALL_LIBDIR}/cmake/Kiln)
  install(EXPORT kiln_targets FILE KilnConfig.cmake NAMESPACE Kiln:: DESTINATION ${config} COMPONENT libkiln-dev)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/KilnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/KilnConfigVersion.cmake DESTINATION ${config} COMPONENT libkiln-dev)

  # From the file's own place, which an installation may move.
  file(RELATIVE_PATH prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/kiln.pc.in ${PROJECT_BINARY_DIR}/${target}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${target}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT libkiln-dev)
endfunction()

# kiln_units(SCOPE FILES…): units of systemd for SCOPE, user or system. A name ending in .in is configured once the prefix is
# known: a package's is not the build's.
function(kiln_units scope)
  foreach(unit ${ARGN})
    install(CODE "
      set(KILN_PROGRAMS \${CMAKE_INSTALL_PREFIX}/${KILN_LIBEXECDIR})
      string(REGEX REPLACE \"\\\\.in$\" \"\" name ${unit})
      configure_file(${CMAKE_CURRENT_SOURCE_DIR}/${unit} \$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/lib/systemd/${scope}/\${name} @ONLY)
    " COMPONENT kiln)
  endforeach()
endfunction()
