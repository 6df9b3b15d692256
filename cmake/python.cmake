# The compiled part of the Python package, as install component "python": liblowkey.so, and _api.py, which describes the
# public headers to cffi. Wheels hold no symbolic links, so the library has one name, without a version.

find_package(Python REQUIRED COMPONENTS Interpreter)
set_property(TARGET lowkey PROPERTY VERSION)
set_property(TARGET lowkey PROPERTY SOVERSION)

set(lk_generator ${PROJECT_SOURCE_DIR}/python/generate_api.py)
set(lk_headers ${PROJECT_SOURCE_DIR}/include/lowkey.h ${PROJECT_SOURCE_DIR}/include/lowkey_serve.h ${PROJECT_SOURCE_DIR}/include/lowkey_draft.h
  ${PROJECT_SOURCE_DIR}/include/lowkey_cluster.h ${PROJECT_SOURCE_DIR}/include/lowkey_lab.h)
add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/python/_api.py
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/python
  COMMAND ${Python_EXECUTABLE} ${lk_generator} ${PROJECT_BINARY_DIR}/python/_api.py ${lk_headers}
  DEPENDS ${lk_generator} ${lk_headers} VERBATIM)
add_custom_target(lowkey_python DEPENDS ${PROJECT_BINARY_DIR}/python/_api.py)

install(TARGETS lowkey LIBRARY DESTINATION lowkey COMPONENT python)
install(FILES ${PROJECT_BINARY_DIR}/python/_api.py DESTINATION lowkey COMPONENT python)
