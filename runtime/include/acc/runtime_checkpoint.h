#ifndef ACC_RUNTIME_CHECKPOINT_H
#define ACC_RUNTIME_CHECKPOINT_H

/*
 * Weights and checkpoints: what of acc/runtime.h reads and writes files, by its conventions. All
 * functions but those that say otherwise are collective. ACC_CONFIG for a path that cannot be
 * written, and for what is missing, damaged or of another model; the message names file and tensor.
 */

#include "acc/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights ---------------------------------------------------------------------------------*/

/* Initial values by full name from a checkpoint of any format: a safetensors file, or a folder of
 * them with an index; a .bin of torch.save; a folder of torch DCP; a DeepSpeed checkpoint; a folder
 * of acc_runtime_save or of Accelerate's. Every parameter must be there in its shape. */
ACC_API acc_status acc_model_load_weights(acc_model* model, const char* path) ACC_NOEXCEPT;

typedef struct acc_export_config {
  size_t size;
  int32_t dtype;             /* acc_dtype of parameters; negative: that in which they are kept */
  uint64_t max_shard_nbytes; /* of a folder's files; 0: 10 GB */
} acc_export_config;
#define ACC_EXPORT_CONFIG_INITIALIZER \
  { sizeof(acc_export_config), -1, 0 }
/* All parameters and buffers, written by rank 0, complete or absent: one file "….safetensors" or
 * "….bin" (torch.save), or, for a path without such an ending, a folder of safetensors files with
 * an index. config: NULL for the initializer's values. */
ACC_API acc_status acc_model_export_weights(acc_model* model, const char* path,
                                            const acc_export_config* config) ACC_NOEXCEPT;

/* A full tensor, valid during the call. data: [shape], row-major. */
typedef struct acc_full_tensor {
  size_t size;
  const char* name; /* full name; a tied one comes under each of its names */
  const int64_t* shape;
  size_t num_dims;
  int32_t dtype; /* acc_dtype in which master weights are kept; buffers ACC_FLOAT32 */
  const void* data;
} acc_full_tensor;
typedef void (*acc_visit_function)(const acc_full_tensor* tensor, void* context);

typedef struct acc_state_dict_config {
  size_t size;
  int32_t rank0_only;     /* 1: the other ranks' function is not called */
  int32_t offload_to_cpu; /* 0: data is device memory */
} acc_state_dict_config;
#define ACC_STATE_DICT_CONFIG_INITIALIZER \
  { sizeof(acc_state_dict_config), 1, 1 }
/* Hands the full parameters and buffers to the program, one unit in memory at a time; `visit` may
 * not use the runtime. config: NULL for the initializer's values. */
ACC_API acc_status acc_model_state_dict(acc_model* model, const acc_state_dict_config* config,
                                        acc_visit_function visit, void* context) ACC_NOEXCEPT;

/* ---- checkpoints -----------------------------------------------------------------------------*/

typedef enum acc_value_kind {
  ACC_VALUE_INTEGER = 0, /* integer */
  ACC_VALUE_REAL = 1,    /* real */
  ACC_VALUE_BYTES = 2    /* bytes: [num_bytes], any */
} acc_value_kind;

/* A small named value of the program's own that travels with a checkpoint. */
typedef struct acc_program_value {
  size_t size;
  const char* name;
  int32_t kind;    /* acc_value_kind */
  int32_t of_rank; /* 1: each rank's own; 0: rank 0's is saved, and all ranks get it */
  int64_t integer;
  double real;
  const void* bytes;
  size_t num_bytes;
} acc_program_value;
#define ACC_PROGRAM_VALUE_INITIALIZER \
  { sizeof(acc_program_value), NULL, ACC_VALUE_INTEGER, 0, 0, 0.0, NULL, 0 }

typedef struct acc_program_state acc_program_state;

/* Writes a checkpoint folder in Accelerate's layout, in the form that fsdp_state_dict_type names,
 * complete or absent. values: [count], of one size. */
ACC_API acc_status acc_runtime_save(acc_runtime* runtime, const char* directory,
                                    const acc_model* model, const acc_optimizer* optimizer,
                                    const acc_program_value* values, size_t count) ACC_NOEXCEPT;
/* Reads what any strategy, precision and number of ranks saved, here, in torch, Accelerate or
 * DeepSpeed. state: may be NULL; else to be freed. */
ACC_API acc_status acc_runtime_load(acc_runtime* runtime, const char* directory, acc_model* model,
                                    acc_optimizer* optimizer,
                                    acc_program_state** state) ACC_NOEXCEPT;

/* A model and what trains it. */
typedef struct acc_trained {
  acc_model* model;
  acc_optimizer* optimizer;
} acc_trained;
/* The same for several models. parts: [num_parts], in one order in `save` and `load`. */
ACC_API acc_status acc_runtime_save_all(acc_runtime* runtime, const char* directory,
                                        const acc_trained* parts, size_t num_parts,
                                        const acc_program_value* values, size_t count) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_load_all(acc_runtime* runtime, const char* directory,
                                        const acc_trained* parts, size_t num_parts,
                                        acc_program_state** state) ACC_NOEXCEPT;

/* ACC_NOT_FOUND where the checkpoint has no value of that name (of this rank). value: name and
 * bytes live as long as the state. Not collective. */
ACC_API acc_status acc_program_state_get(const acc_program_state* state, const char* name,
                                         acc_program_value* value) ACC_NOEXCEPT;
ACC_API acc_status acc_program_state_get_of_rank(const acc_program_state* state, const char* name,
                                                 acc_program_value* value) ACC_NOEXCEPT;
ACC_API void acc_program_state_free(acc_program_state* state) ACC_NOEXCEPT;

/* ---- series ----------------------------------------------------------------------------------*/

/* The checkpoints of one run, "FOLDER/checkpoint_<n>", and FOLDER/latest, the name of the newest.
 */
typedef struct acc_checkpoint_series acc_checkpoint_series;
typedef struct acc_checkpoint_series_config {
  size_t size;
  int32_t total_limit; /* how many are kept; 0: all */
} acc_checkpoint_series_config;
#define ACC_CHECKPOINT_SERIES_CONFIG_INITIALIZER \
  { sizeof(acc_checkpoint_series_config), 0 }
/* config: NULL for the initializer's values. The runtime outlives the series. Not collective, nor
 * is its end. */
ACC_API acc_status acc_checkpoint_series_create(acc_runtime* runtime, const char* folder,
                                                const acc_checkpoint_series_config* config,
                                                acc_checkpoint_series** series) ACC_NOEXCEPT;
ACC_API void acc_checkpoint_series_free(acc_checkpoint_series* series) ACC_NOEXCEPT;
/* Path of the newest complete one, ended by NUL; ACC_NOT_FOUND where there is none. path:
 * [capacity]; ACC_INVALID_ARGUMENT where it is too small. */
ACC_API acc_status acc_checkpoint_series_newest(const acc_checkpoint_series* series, char* path,
                                                size_t capacity) ACC_NOEXCEPT;
/* Saves the next one and removes those beyond the limit. */
ACC_API acc_status acc_checkpoint_series_save(acc_checkpoint_series* series, const acc_model* model,
                                              const acc_optimizer* optimizer,
                                              const acc_program_value* values,
                                              size_t count) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_CHECKPOINT_H */
