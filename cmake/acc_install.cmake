# SPDX-License-Identifier: Apache-2.0
# Installs programs, libacc_runtime.so with its public headers, CMake and pkg-config files, and in
# share/acclaunch the files to which README.md links, in the same folders as in the repository.
include(CMakePackageConfigHelpers)

set_target_properties(acc_runtime PROPERTIES EXPORT_NAME runtime
                                             VERSION ${PROJECT_VERSION} SOVERSION 0)
install(TARGETS acc_runtime EXPORT accTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# Parts of the runtime, which searches them in its own folder.
install(TARGETS acc_gloo acc_s3 LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(ACC_CUDA)
  install(TARGETS acc_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET acc_torch)
  set_target_properties(acc_torch PROPERTIES EXPORT_NAME torch VERSION ${PROJECT_VERSION} SOVERSION 0)
  acc_search_libraries_in(acc_torch "$ORIGIN" "${ACC_LIBTORCH}/lib")
  # Optional: a build may have been asked for other targets only.
  install(TARGETS acc_torch EXPORT accTorchTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
  install(FILES runtime/torch/include/acc/torch.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc)
endif()
foreach(header acc/runtime.hpp acc/runtime.h acc/runtime_checkpoint.h acc/runtime_data.h
        acc/collectives.h)
  install(FILES runtime/include/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc)
endforeach()
install(DIRECTORY runtime/include/acc/runtime DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc)
install(FILES plugins/include/acc/base/error.hpp plugins/include/acc/base/export.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc/base)
install(FILES plugins/include/acc/settings/deepspeed_plugin.hpp
              plugins/include/acc/settings/fsdp_plugin.hpp
              plugins/include/acc/settings/program_settings.hpp
              plugins/include/acc/settings/sharding_settings.hpp
              plugins/include/acc/settings/training_settings.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc/settings)
install(FILES rendezvous/include/acc/rendezvous/store.hpp
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/acc/rendezvous)
set(share ${CMAKE_INSTALL_DATADIR}/acclaunch)
install(FILES CONTRIBUTING.md LICENSE README.md DESTINATION ${share})
install(FILES bench/README.md DESTINATION ${share}/bench)
install(FILES examples/CMakeLists.txt DESTINATION ${share}/examples)
install(DIRECTORY configs docs DESTINATION ${share})
install(DIRECTORY packaging/container packaging/kubernetes packaging/monitoring DESTINATION ${share}/packaging)
install(DIRECTORY examples/c_api examples/hello_sharding examples/train_gpt examples/train_torch
        DESTINATION ${share}/examples)
install(DIRECTORY examples/python DESTINATION ${share}/examples PATTERN __pycache__ EXCLUDE)
install(DIRECTORY python/acclaunch python/acclaunch.dist-info DESTINATION ${share}/python
        PATTERN __pycache__ EXCLUDE)
install(DIRECTORY scripts/flux scripts/lsf scripts/pbs scripts/slurm DESTINATION ${share}/scripts)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/acc)
install(EXPORT accTargets NAMESPACE acc:: DESTINATION ${package_dir})
if(TARGET acc_torch)
  install(EXPORT accTorchTargets NAMESPACE acc:: DESTINATION ${package_dir})
  install(FILES cmake/find_libtorch.cmake DESTINATION ${package_dir})
endif()
configure_package_config_file(cmake/accConfig.cmake.in ${CMAKE_BINARY_DIR}/accConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/accConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/accConfig.cmake ${CMAKE_BINARY_DIR}/accConfigVersion.cmake
        DESTINATION ${package_dir})
# The prefix is relative to the .pc file, so that the installation can be moved.
file(RELATIVE_PATH up /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
set(ACC_PC_PREFIX "\${pcfiledir}/${up}")
configure_file(cmake/acc_runtime.pc.in ${CMAKE_BINARY_DIR}/acc_runtime.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/acc_runtime.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
