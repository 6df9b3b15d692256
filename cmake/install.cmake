# What `cmake --install` puts where. The prefix can be moved afterwards.
#
#   lib/liblowkey.a            the library
#   lib/lowkey/*.a             the llama.cpp and ggml archives it was built with
#   lib/cmake/lowkey, lib/pkgconfig/lowkey.pc
#   include/lowkey.h
#   bin/lowkey, share/man, share/bash-completion, share/lowkey/fetch-model

include(CMakePackageConfigHelpers)

install(TARGETS lowkey EXPORT lowkeyTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/lowkey.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# Static archives travel with a static library, so that the installed package needs nothing else.
set(LK_BUNDLE OFF)
set(LK_PRIVATE_LIBS "")
set(LK_PRIVATE_NAMES "")
if(LK_LLAMA_STATIC AND NOT BUILD_SHARED_LIBS)
  set(LK_BUNDLE ON)
  set(LK_PRIVATE_LIBS "-L\${libdir}/lowkey")
  foreach(target ${LK_LLAMA_TARGETS})
    install(FILES $<TARGET_FILE:${target}> DESTINATION ${CMAKE_INSTALL_LIBDIR}/lowkey)
  endforeach()
endif()
if(NOT BUILD_SHARED_LIBS)
  if(NOT LK_BUNDLE AND TARGET llama) # an installed llama.cpp, which need not be where linkers look
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
endif()

set(LK_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/lowkey)
configure_package_config_file(cmake/lowkeyConfig.cmake.in ${PROJECT_BINARY_DIR}/lowkeyConfig.cmake
  INSTALL_DESTINATION ${LK_PACKAGE_DIR} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/lowkeyConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/lowkeyConfig.cmake ${PROJECT_BINARY_DIR}/lowkeyConfigVersion.cmake
  DESTINATION ${LK_PACKAGE_DIR})
install(EXPORT lowkeyTargets NAMESPACE lowkey:: DESTINATION ${LK_PACKAGE_DIR})

# pkg-config: the prefix is written relative to the .pc file.
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

if(TARGET lowkey_program)
  install(TARGETS lowkey_program DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/docs/lowkey.1)
  install(FILES docs/lowkey.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/scripts/completion.bash)
  install(FILES scripts/completion.bash
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME lowkey)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/scripts/fetch-model)
  install(PROGRAMS scripts/fetch-model DESTINATION ${CMAKE_INSTALL_DATADIR}/lowkey)
endif()
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
