# acc_checkpoint: checkpoint files of every format, without models, devices or ranks. Position
# independent: linked whole into libacc_runtime.so, and into the launcher, whose sub-commands
# convert checkpoints.
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)
find_library(ACC_ISAL isal REQUIRED)
find_path(ACC_ISAL_INCLUDE isa-l/crc.h REQUIRED)

acc_add_library(checkpoint
  SOURCES
    # files
    src/checkpoint/files/atomic_folder.cpp
    src/checkpoint/files/crc32.cpp
    src/checkpoint/files/input_file.cpp
    src/checkpoint/files/json_value.cpp
    src/checkpoint/files/manifest.cpp
    src/checkpoint/files/mapped_file.cpp
    src/checkpoint/files/series_folder.cpp
    # tensor
    src/checkpoint/tensor/box.cpp
    src/checkpoint/tensor/convert.cpp
    src/checkpoint/tensor/dtype.cpp
    # pickle, archive, torch
    src/checkpoint/pickle/known_globals.cpp
    src/checkpoint/pickle/machine.cpp
    src/checkpoint/pickle/reader.cpp
    src/checkpoint/pickle/source.cpp
    src/checkpoint/pickle/value.cpp
    src/checkpoint/pickle/writer.cpp
    src/checkpoint/archive/read_records.cpp
    src/checkpoint/archive/writer.cpp
    src/checkpoint/archive/zip_format.cpp
    src/checkpoint/torch/tensor_value.cpp
    src/checkpoint/torch/torch_file.cpp
    src/checkpoint/torch/torch_file_writer.cpp
    # catalog
    src/checkpoint/catalog/catalog.cpp
    src/checkpoint/catalog/format.cpp
    src/checkpoint/catalog/open.cpp
    src/checkpoint/catalog/piece_reader.cpp
    src/checkpoint/catalog/piece_source.cpp
    src/checkpoint/catalog/tensor_reader.cpp
    # safetensors
    src/checkpoint/safetensors/file.cpp
    src/checkpoint/safetensors/header.cpp
    src/checkpoint/safetensors/tensor_set.cpp
    # dcp
    src/checkpoint/dcp/archive_sizes.cpp
    src/checkpoint/dcp/cut_rules.cpp
    src/checkpoint/dcp/folder_plan.cpp
    src/checkpoint/dcp/format_metadata.cpp
    src/checkpoint/dcp/hugging_face.cpp
    src/checkpoint/dcp/parse_metadata.cpp
    src/checkpoint/dcp/plan_json.cpp
    src/checkpoint/dcp/planned_pieces.cpp
    src/checkpoint/dcp/read_folder.cpp
    src/checkpoint/dcp/state_names.cpp
    src/checkpoint/dcp/write_folder.cpp
    # deepspeed
    src/checkpoint/deepspeed/archive_builder.cpp
    src/checkpoint/deepspeed/checkpoint_files.cpp
    src/checkpoint/deepspeed/export_plan.cpp
    src/checkpoint/deepspeed/flat_layout.cpp
    src/checkpoint/deepspeed/module_states.cpp
    src/checkpoint/deepspeed/rank_flats.cpp
    src/checkpoint/deepspeed/reader.cpp
    src/checkpoint/deepspeed/writer.cpp
    # accelerate
    src/checkpoint/accelerate/full_files.cpp
    src/checkpoint/accelerate/group_values.cpp
    src/checkpoint/accelerate/save_folder.cpp
    src/checkpoint/accelerate/state_files.cpp
    src/checkpoint/accelerate/torch_weights.cpp
    # contents of torch.save archives, listed in a catalog
    src/checkpoint/catalog/record_table.cpp
    src/checkpoint/pickle/node.cpp
    src/checkpoint/torch/scalar.cpp
    # convert
    src/checkpoint/convert/bin_output.cpp
    src/checkpoint/convert/check_written.cpp
    src/checkpoint/convert/convert.cpp
    src/checkpoint/convert/dcp_folder.cpp
    src/checkpoint/convert/dcp_output.cpp
    src/checkpoint/convert/deepspeed_output.cpp
    src/checkpoint/convert/folder_output.cpp
    src/checkpoint/convert/output_set.cpp
    src/checkpoint/convert/parallel.cpp
    src/checkpoint/convert/reshard.cpp
    src/checkpoint/convert/safetensors_output.cpp
    src/checkpoint/convert/save_folder.cpp
    src/checkpoint/convert/selection.cpp
    src/checkpoint/convert/streaming.cpp
    src/checkpoint/convert/tiles.cpp
    src/checkpoint/convert/verify.cpp
    # state
    src/checkpoint/state/local_layout.cpp
  PUBLIC acc::runtime_parts
  PRIVATE nlohmann_json::nlohmann_json ZLIB::ZLIB ${ACC_ISAL})
target_include_directories(acc_checkpoint
  PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/src>
  PRIVATE ${ACC_ISAL_INCLUDE})
set_source_files_properties(src/checkpoint/deepspeed/writer.cpp PROPERTIES
  COMPILE_DEFINITIONS "ACC_VERSION=\"${PROJECT_VERSION}\"")
