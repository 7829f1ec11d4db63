# Run by cpack before it makes the Debian package: what belongs outside /usr, and Debian's own papers.
set(_source ${CMAKE_CURRENT_LIST_DIR}/..)
set(_root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
foreach(_server worker front)
  file(COPY ${_source}/deploy/systemd/ete-${_server}.service ${_source}/deploy/systemd/ete-${_server}.socket
       DESTINATION ${_root}/lib/systemd/system
       NO_SOURCE_PERMISSIONS)
  file(COPY ${_source}/deploy/systemd/${_server}.conf DESTINATION ${_root}/etc/ete NO_SOURCE_PERMISSIONS)
endforeach()
set(_doc ${_root}/usr/share/doc/edge-transformer-engine)
file(COPY ${_source}/README.md ${_source}/deploy/debian/copyright DESTINATION ${_doc} NO_SOURCE_PERMISSIONS)
file(WRITE ${_doc}/changelog "edge-transformer-engine (${CPACK_PACKAGE_VERSION}) bookworm; urgency=low

  * See the history of the sources.

 -- ${CPACK_PACKAGE_CONTACT}  Thu, 01 Jan 1970 00:00:00 +0000
")
execute_process(COMMAND gzip -9 -n ${_doc}/changelog COMMAND_ERROR_IS_FATAL ANY)
