# As a script (cmake -DOUT= -DTOP= -P version.cmake): write a C source with the commit that the tree is built from, as
# `const char lk_commit[]`. The file is left alone if the commit has not changed.
#
# `git archive` writes the commit into the line with Format. In a checkout git knows it.

cmake_minimum_required(VERSION 3.22)
set(commit "$Format:%H$")
if(commit MATCHES "^.Format")
  execute_process(COMMAND git -C ${TOP} describe --always --dirty --abbrev=12 --exclude * OUTPUT_VARIABLE commit
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(commit "unknown")
  endif()
else()
  string(SUBSTRING ${commit} 0 12 commit)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "extern const char lk_commit[];\nconst char lk_commit[] = \"${commit}\";\n")
