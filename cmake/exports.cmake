# A shared liblowkey exports the functions declared in lowkey.h and nothing else.

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/lowkey.h)
file(STRINGS ${PROJECT_SOURCE_DIR}/include/lowkey.h lk_lines REGEX "^[a-z].*lk_[a-z0-9_]+\\(")
set(lk_names "")
foreach(line IN LISTS lk_lines)
  if(NOT line MATCHES "^typedef" AND line MATCHES "(lk_[a-z0-9_]+)\\(")
    string(APPEND lk_names "${CMAKE_MATCH_1};")
  endif()
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/lowkey.map CONTENT "{ global: ${lk_names} local: *; };\n" @ONLY)
target_link_options(lowkey PRIVATE "LINKER:--version-script=${PROJECT_BINARY_DIR}/lowkey.map")
set_property(TARGET lowkey APPEND PROPERTY LINK_DEPENDS ${PROJECT_BINARY_DIR}/lowkey.map)
