# lk_embed(target file name): compile the bytes of a file into the target, as a zero-terminated `const char NAME[]`
# and `const size_t NAME_len`.
#
# As a script (cmake -DIN= -DOUT= -DNAME= -P embed.cmake), this file writes the C source.

if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${IN} hex HEX)
  string(LENGTH "${hex}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  file(WRITE ${OUT} "#include <stddef.h>\nextern const char ${NAME}[];\nextern const size_t ${NAME}_len;\n"
                    "const char ${NAME}[] = {\n${bytes}0};\nconst size_t ${NAME}_len = ${length};\n")
  return()
endif()

set(LK_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(lk_embed target file name)
  set(out ${PROJECT_BINARY_DIR}/embed/${name}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DIN=${file} -DOUT=${out} -DNAME=${name} -P ${LK_EMBED_SCRIPT}
    DEPENDS ${file} ${LK_EMBED_SCRIPT} VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()

# lk_embed_page(target files...): embed the files, each given as NAME=PATH, and a table of them, lk_page_files, which
# programs/serve/page.c reads.
function(lk_embed_page target)
  set(types "html=text/html" "css=text/css" "js=text/javascript" "txt=text/plain")
  set(externs "")
  set(rows "")
  foreach(file ${ARGN})
    string(REGEX MATCH "^([^=]+)=(.*)$" _ ${file})
    set(name ${CMAKE_MATCH_1})
    set(path ${CMAKE_MATCH_2})
    string(MAKE_C_IDENTIFIER "lk_page_${name}" symbol)
    lk_embed(${target} ${path} ${symbol})
    string(REGEX REPLACE ".*\\." "" extension ${name})
    string(REGEX MATCH "(^|;)${extension}=([^;]*)" _ "${types}")
    string(APPEND externs "extern const char ${symbol}[];\nextern const size_t ${symbol}_len;\n")
    string(APPEND rows "    {\"${name}\", \"${CMAKE_MATCH_2}; charset=utf-8\", ${symbol}, &${symbol}_len},\n")
  endforeach()
  set(table ${PROJECT_BINARY_DIR}/embed/lk_page_files.c)
  file(CONFIGURE OUTPUT ${table} @ONLY CONTENT
    "#include \"serve/page.h\"\n@externs@extern const struct lk_page_file lk_page_files[];\nconst struct lk_page_file lk_page_files[] = {\n@rows@    {0},\n};\n")
  target_sources(${target} PRIVATE ${table})
endfunction()
