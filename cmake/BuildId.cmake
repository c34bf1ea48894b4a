# cmake -DROOT=… -DOUT=… -P BuildId.cmake: writes build_id.cc when a generator source has changed.
#
# What is under backends/X, where X has a folder compile/, decides the kernels of backend X alone; every other source
# decides those of all.
set(patterns "")
foreach(folder frontend backends verdict jit/build)
  list(APPEND patterns ${ROOT}/${folder}/*.cc ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cuh ${ROOT}/${folder}/*.json ${ROOT}/${folder}/*.fbs)
endforeach()
file(GLOB_RECURSE sources RELATIVE ${ROOT} ${patterns} ${ROOT}/jit/run/*.fbs)
list(SORT sources)
file(GLOB compilers LIST_DIRECTORIES true RELATIVE ${ROOT} ${ROOT}/backends/*/compile)
list(SORT compilers)

set(all "")
foreach(source ${sources})
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND all ${hash})
  set(owner common)
  foreach(compiler ${compilers})
    get_filename_component(folder ${compiler} DIRECTORY)
    if(source MATCHES "^${folder}/")
      get_filename_component(owner ${folder} NAME)
    endif()
  endforeach()
  string(APPEND hashes_of_${owner} ${hash})
endforeach()

function(id_of out)
  string(SHA256 id "${ARGN}")
  string(SUBSTRING ${id} 0 16 id)
  set(${out} ${id} PARENT_SCOPE)
endfunction()

id_of(id ${all})
id_of(common ${hashes_of_common})
set(rows "")
foreach(compiler ${compilers})
  get_filename_component(folder ${compiler} DIRECTORY)
  get_filename_component(backend ${folder} NAME)
  id_of(own ${hashes_of_common}${hashes_of_${backend}})
  string(APPEND rows "  if (backend == \"${backend}\") return \"${own}\";\n")
endforeach()
set(text "#include \"base/build_id.h\"

namespace kiln {
std::string_view generator_build_id() { return \"${id}\"; }
std::string_view generator_build_id(std::string_view backend) {
${rows}  return \"${common}\";
}
}  // namespace kiln
")
set(old "")
if(EXISTS ${OUT})
  file(READ ${OUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
