# liblowkey.so exports the functions declared in lowkey.h, lowkey_codec.h, lowkey_serve.h, lowkey_draft.h and lowkey_cluster.h, those of
# lowkey_lab.h that lab/measure and lab/baselines define, and nothing else. Compressing, training, exporting and tuning are in the static laboratory only.

set(lk_headers ${PROJECT_SOURCE_DIR}/include/lowkey.h ${PROJECT_SOURCE_DIR}/include/lowkey_codec.h ${PROJECT_SOURCE_DIR}/include/lowkey_serve.h ${PROJECT_SOURCE_DIR}/include/lowkey_draft.h
  ${PROJECT_SOURCE_DIR}/include/lowkey_cluster.h ${PROJECT_SOURCE_DIR}/include/lowkey_lab.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${lk_headers})
set(lk_names "")
foreach(header IN LISTS lk_headers)
  file(STRINGS ${header} lk_lines REGEX "^[a-z].*lk_[a-z0-9_]+\\(")
  foreach(line IN LISTS lk_lines)
    if(NOT line MATCHES "^typedef|lk_(compress|train|tune|export)[a-z_]*\\(" AND line MATCHES "(lk_[a-z0-9_]+)\\(")
      string(APPEND lk_names "${CMAKE_MATCH_1};")
    endif()
  endforeach()
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/lowkey.map CONTENT "{ global: ${lk_names} local: *; };\n" @ONLY)
target_link_options(lowkey PRIVATE "LINKER:--version-script=${PROJECT_BINARY_DIR}/lowkey.map" "LINKER:--no-undefined")
set_property(TARGET lowkey APPEND PROPERTY LINK_DEPENDS ${PROJECT_BINARY_DIR}/lowkey.map)
