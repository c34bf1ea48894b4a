# `cpack` in the build folder makes Debian packages of what cmake/KilnInstall.cmake installs: one for each component but python,
# which the wheel is for.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kiln)
set(CPACK_PACKAGE_CONTACT "The maintainers of Kiln <kiln@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Compiled kernels for deep-learning programs, kept between processes")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL kiln libkiln libkiln-dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)

set(CPACK_DEBIAN_KILN_PACKAGE_NAME kiln)
set(CPACK_COMPONENT_KILN_DESCRIPTION "The daemon, its workers and the command line.")

set(CPACK_DEBIAN_LIBKILN_PACKAGE_NAME libkiln${PROJECT_VERSION_MAJOR})
set(CPACK_COMPONENT_LIBKILN_DESCRIPTION "The library that programs find compiled kernels with.")
set(CPACK_DEBIAN_LIBKILN_PACKAGE_RECOMMENDS kiln)

set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_NAME libkiln-dev)
set(CPACK_COMPONENT_LIBKILN-DEV_DESCRIPTION "Headers, and what CMake and pkg-config find the library by.")
set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBKILN-DEV_PACKAGE_DEPENDS "${CPACK_DEBIAN_LIBKILN_PACKAGE_NAME} (= ${PROJECT_VERSION})")
include(CPack)
