# kiln_python_package(NAME FOLDER LIBRARY): the package kiln over a libkiln, laid out in <build>/FOLDER/kiln, so that
# PYTHONPATH=<build>/FOLDER serves it without an installation. KILN_PYTHON names the interpreter.
set(Python3_FIND_VIRTUALENV FIRST)
if(KILN_PYTHON)
  set(Python3_EXECUTABLE ${KILN_PYTHON})
endif()
find_package(Python3 3.10 COMPONENTS Interpreter Development.Module)
if(NOT Python3_Development.Module_FOUND)
  message(STATUS "kiln: no Python headers found: the Python package is not built")
  return()
endif()

set(KILN_PYTHON_SOURCES
  ${PROJECT_SOURCE_DIR}/client/python/src/client.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/error.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/exported.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/host_tensor.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/module.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/program.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/sized_graph.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/stopwatch.cc
  ${PROJECT_SOURCE_DIR}/client/python/src/tensor_exchange.cc)

function(kiln_python_package name folder library)
  set(package ${PROJECT_BINARY_DIR}/${folder}/kiln)
  file(MAKE_DIRECTORY ${package})
  # Each file is linked, so an edit needs no build; a new file needs a configure.
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/client/python/kiln
    ${PROJECT_SOURCE_DIR}/client/python/kiln/*.py ${PROJECT_SOURCE_DIR}/client/python/kiln/py.typed)
  file(GLOB_RECURSE old ${package}/*.py)
  if(old)
    file(REMOVE ${old})  # links to files that are no more
  endif()
  foreach(file ${files})
    get_filename_component(parent ${package}/${file} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/client/python/kiln/${file} ${package}/${file} SYMBOLIC)
  endforeach()
  # What an installation would leave, so that torch finds the entry point.
  set(metadata ${PROJECT_BINARY_DIR}/${folder}/kiln-${PROJECT_VERSION}.dist-info)
  file(WRITE ${metadata}/METADATA "Metadata-Version: 2.1\nName: kiln\nVersion: ${PROJECT_VERSION}\n")
  file(WRITE ${metadata}/entry_points.txt "[torch_dynamo_backends]\nkiln = kiln.torch:backend\n")
  Python3_add_library(${name} MODULE WITH_SOABI ${KILN_PYTHON_SOURCES})
  target_link_libraries(${name} PRIVATE kiln_settings ${library} OpenMP::OpenMP_CXX)
  # CPython's macros fill structs by C's rules.
  target_compile_options(${name} PRIVATE -fvisibility=hidden -Wno-cast-function-type)
  # The stable ABI has what a call takes (vectorcall) from Python 3.12 on: there one build serves all later ones.
  if(Python3_VERSION VERSION_GREATER_EQUAL 3.12)
    target_compile_definitions(${name} PRIVATE Py_LIMITED_API=0x030C0000)
    set_target_properties(${name} PROPERTIES SUFFIX .abi3.so)
  endif()
  # Each of its files has a type, whose tables are named alike.
  set_target_properties(${name} PROPERTIES OUTPUT_NAME _kiln LIBRARY_OUTPUT_DIRECTORY ${package}
    INSTALL_RPATH "$ORIGIN" UNITY_BUILD OFF)
endfunction()
