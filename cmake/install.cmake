# Files that `cmake --install` installs. The installed tree can be moved afterwards.
#
#   include/lowkey.h, lowkey_codec.h, lowkey_serve.h, lowkey_draft.h, lowkey_cluster.h, lowkey_lab.h   the interfaces
#   lib/liblowkey.so                           the library, with lab/measure; unless LOWKEY_SHARED is off
#   lib/liblowkey.a, lib/lowkey/*.a            the library, and the llama.cpp and ggml archives that it was built with
#   lib/liblowkey_lab.a                        the laboratory, for liblowkey.a: it uses internal functions
#   lib/cmake/lowkey, lib/pkgconfig/*.pc       lowkey::lowkey, lowkey_static and lab; lowkey and lowkey-lab
#   bin/lowkey, share/man, share/lowkey/fetch-model
#   share/bash-completion                      the completion script

include(CMakePackageConfigHelpers)

set(LK_LIBRARIES lowkey_static)
if(LOWKEY_SHARED)
  list(APPEND LK_LIBRARIES lowkey)
endif()
install(TARGETS ${LK_LIBRARIES} EXPORT lowkeyTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/lowkey.h include/lowkey_codec.h include/lowkey_serve.h include/lowkey_draft.h include/lowkey_cluster.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The laboratory has an export file of its own, so that users of lowkey::lowkey do not need its dependencies (LAPACKE,
# OpenBLAS).
set(LK_INSTALL_LAB OFF)
if(TARGET lowkey_lab)
  set(LK_INSTALL_LAB ON)
  set_target_properties(lowkey_lab PROPERTIES EXCLUDE_FROM_ALL OFF EXPORT_NAME lab)
  install(TARGETS lowkey_lab EXPORT lowkeyLabTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(LOWKEY_SHARED OR LK_INSTALL_LAB)
  install(FILES include/lowkey_lab.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()

# What a program needs that links liblowkey.a. Static archives of llama.cpp are installed next to it, so the package is
# self-contained.
set(LK_BUNDLE OFF)
set(LK_PRIVATE_LIBS "")
set(LK_PRIVATE_NAMES "")
if(LK_LLAMA_STATIC)
  set(LK_BUNDLE ON)
  set(LK_PRIVATE_LIBS "-L\${libdir}/lowkey")
  foreach(target ${LK_LLAMA_TARGETS})
    install(FILES $<TARGET_FILE:${target}> DESTINATION ${CMAKE_INSTALL_LIBDIR}/lowkey)
  endforeach()
elseif(TARGET llama) # an installed llama.cpp may be outside the linker's search path
  get_target_property(llama_file llama LOCATION)
  if(llama_file)
    get_filename_component(llama_folder ${llama_file} DIRECTORY)
    string(APPEND LK_PRIVATE_LIBS "-L${llama_folder}")
  endif()
endif()
foreach(target ${LK_LLAMA_TARGETS})
  string(REGEX REPLACE "^ggml::" "" name ${target})
  list(APPEND LK_PRIVATE_NAMES ${name})
  string(APPEND LK_PRIVATE_LIBS " -l${name}")
endforeach()
string(APPEND LK_PRIVATE_LIBS " -pthread")
foreach(name ${LK_SYSTEM_LIBS})
  string(APPEND LK_PRIVATE_LIBS " -l${name}")
endforeach()

# The CMake package.
set(LK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lowkey)
configure_package_config_file(cmake/lowkeyConfig.cmake.in ${PROJECT_BINARY_DIR}/lowkeyConfig.cmake
  INSTALL_DESTINATION ${LK_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lowkeyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lowkeyConfig.cmake ${PROJECT_BINARY_DIR}/lowkeyConfigVersion.cmake
  DESTINATION ${LK_PACKAGE_DIR})
install(EXPORT lowkeyTargets NAMESPACE lowkey:: DESTINATION ${LK_PACKAGE_DIR})
if(LK_INSTALL_LAB)
  install(EXPORT lowkeyLabTargets NAMESPACE lowkey:: DESTINATION ${LK_PACKAGE_DIR})
endif()

# pkg-config. The prefix is relative to the .pc file.
set(LK_PC_DIR ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH LK_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" LK_PC_PREFIX "${LK_PC_PREFIX}")
foreach(dir LIBDIR INCLUDEDIR)
  set(LK_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
  if(IS_ABSOLUTE ${CMAKE_INSTALL_${dir}})
    set(LK_PC_${dir} ${CMAKE_INSTALL_${dir}})
  endif()
endforeach()
configure_file(cmake/lowkey.pc.in ${PROJECT_BINARY_DIR}/lowkey.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/lowkey.pc DESTINATION ${LK_PC_DIR})
if(LK_INSTALL_LAB)
  configure_file(cmake/lowkey-lab.pc.in ${PROJECT_BINARY_DIR}/lowkey-lab.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/lowkey-lab.pc DESTINATION ${LK_PC_DIR})
endif()

# For the Python package, whose wheels hold no symbolic links: the library under one name.
if(LOWKEY_PYTHON)
  include(cmake/python.cmake)
endif()

# The program, its documentation, and the script that it runs to fetch models.
if(TARGET lowkey_program)
  install(TARGETS lowkey_program DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET lowkey_docs)
  install(FILES ${PROJECT_BINARY_DIR}/lowkey.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PROJECT_BINARY_DIR}/lowkey.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lowkey)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/scripts/fetch-model)
  install(PROGRAMS scripts/fetch-model DESTINATION ${CMAKE_INSTALL_DATADIR}/lowkey)
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
