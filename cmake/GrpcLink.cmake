# gRPC, protobuf and abseil come from Debian's static archives with every symbol hidden. Debian's
# libsentencepiece.so exports a protobuf-lite of its own (3.14): beside a visible libprotobuf 3.21 it aborts before main.
find_package(Protobuf 3.21 REQUIRED)
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(absl CONFIG REQUIRED)

add_library(ete_grpc INTERFACE)
set(_lib_dir /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
file(GLOB _absl ${_lib_dir}/libabsl_*.a)
list(FILTER _absl EXCLUDE REGEX "libabsl_flags_(parse|usage)")
set(_libs)
foreach(name grpc++_reflection grpc++ grpc gpr upb address_sorting protobuf cares re2 ssl crypto z)
  if(NOT EXISTS ${_lib_dir}/lib${name}.a)
    message(FATAL_ERROR "missing ${_lib_dir}/lib${name}.a: scripts/setup.sh installs the packages that hold them")
  endif()
  list(APPEND _libs ${_lib_dir}/lib${name}.a)
endforeach()
target_link_libraries(ete_grpc INTERFACE -Wl,--start-group ${_libs} ${_absl} -Wl,--end-group Threads::Threads rt dl m)
if(ETE_FUZZ)
  # Clang's sanitizers are in the program: its allocator has to stay visible to libstdc++.so.
  target_link_options(ete_grpc INTERFACE -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/hide_named.map)
else()
  target_link_options(ete_grpc INTERFACE -Wl,--exclude-libs,ALL
                      -Wl,--version-script=${CMAKE_CURRENT_LIST_DIR}/hide.map -Wl,--gc-sections)
endif()
