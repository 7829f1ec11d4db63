# `cmake --install` puts programs, manual pages and completions under a prefix; `cpack -G DEB` makes a package of them,
# with the units of systemd.
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)
include(GNUInstallDirs)
# Tests need not be built to install or pack the programs.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

install(TARGETS ete ete-worker ete-front RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Made of what the programs say with --help, so after they are built.
set(_made ${CMAKE_BINARY_DIR}/install)
install(CODE "
  file(REMOVE_RECURSE ${_made})
  file(MAKE_DIRECTORY ${_made})
  execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/man_pages.py --gzip
                          ${CMAKE_BINARY_DIR}/bin ${_made}/man COMMAND_ERROR_IS_FATAL ANY)
  foreach(shell bash zsh fish)
    execute_process(COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/completions.py \${shell}
                            ${CMAKE_BINARY_DIR}/bin OUTPUT_FILE ${_made}/ete.\${shell} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
set(_shared ${CMAKE_INSTALL_DATADIR})
install(DIRECTORY ${_made}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
foreach(program ete ete-worker ete-front)
  install(FILES ${_made}/ete.bash DESTINATION ${_shared}/bash-completion/completions RENAME ${program})
  install(FILES ${_made}/ete.fish DESTINATION ${_shared}/fish/vendor_completions.d RENAME ${program}.fish)
endforeach()
install(FILES ${_made}/ete.zsh DESTINATION ${_shared}/zsh/vendor-completions RENAME _ete)
install(DIRECTORY proto/ete DESTINATION ${_shared}/edge-transformer-engine FILES_MATCHING PATTERN *.proto)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME edge-transformer-engine)
set(CPACK_PACKAGE_CONTACT "EdgeTransformerEngine <maintainers@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "text from language models bigger than a GPU's memory")
set(CPACK_PACKAGE_DESCRIPTION
    "A worker holds the model and streams its layers through a GPU's memory, or\ncomputes on the CPU; a front tokenizes, samples and serves gRPC and OpenAI's\nHTTP API. The command ete runs both, inspects and quantises models.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/cmake/PackageFiles.cmake)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS python3-jinja2)  # for templates; without it only chat is refused
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(_script postinst prerm postrm conffiles)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/deploy/debian/${_script})
endforeach()
include(CPack)
