# acc_checkpoint: the files of every format, without models, devices or ranks. Position independent:
# linked whole into libacc_runtime.so, and into the launcher, whose sub-commands convert them.
find_package(nlohmann_json REQUIRED)
find_library(ACC_ISAL isal REQUIRED)
find_path(ACC_ISAL_INCLUDE isa-l/crc.h REQUIRED)

acc_add_library(checkpoint
  SOURCES
    # files
    src/checkpoint/files/atomic_folder.cpp
    src/checkpoint/files/crc32.cpp
    src/checkpoint/files/input_file.cpp
    src/checkpoint/files/mapped_file.cpp
    src/checkpoint/files/output_file.cpp
    # tensor
    src/checkpoint/tensor/box.cpp
    src/checkpoint/tensor/dtype.cpp
    # pickle, archive, torch
    # catalog
    # safetensors
    src/checkpoint/safetensors/file.cpp
    src/checkpoint/safetensors/header.cpp
    # dcp
    # deepspeed
    # accelerate
    # the older form of ours
    src/checkpoint/manifest.cpp
    src/checkpoint/piece_table.cpp
    src/checkpoint/sharded_checkpoint.cpp
  PUBLIC acc::runtime_parts
  PRIVATE nlohmann_json::nlohmann_json ${ACC_ISAL})
target_include_directories(acc_checkpoint
  PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>
  PRIVATE ${ACC_ISAL_INCLUDE})
