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
