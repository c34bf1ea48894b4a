# cmake -DOUT=… -DNAMESPACE=… -DFILES=a.cuh;b.cuh -P Embed.cmake: a source file with each file's text as a
# std::string_view named after it ("prelude.cuh" is `prelude_text`).
set(text "#include <string_view>\n\nnamespace ${NAMESPACE} {\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content)
  string(APPEND text "extern const std::string_view ${name}_text;\nconst std::string_view ${name}_text = R\"embedded(${content})embedded\";\n")
endforeach()
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
