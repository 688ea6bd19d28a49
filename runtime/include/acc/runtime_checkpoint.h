/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ACC_RUNTIME_CHECKPOINT_H
#define ACC_RUNTIME_CHECKPOINT_H

/*
 * Weights and checkpoints: functions that read and write files, with the conventions of
 * acc/runtime.h. All functions are collective unless they say otherwise. They return ACC_CONFIG for
 * a path that cannot be written, and for a file or tensor that is missing, damaged or of another
 * model, and ACC_NOT_SUPPORTED for one that may be sound and cannot be read here; the message names
 * it. docs/checkpoints.md describes folders and formats.
 */

#include "acc/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weights ---------------------------------------------------------------------------------*/

/* Sets parameters by full name from a checkpoint of any supported format: a safetensors file, or a
 * folder of them with an index; a .bin file of torch.save; a folder of torch DCP; a DeepSpeed
 * checkpoint; a folder of acc_runtime_save or of Accelerate. Every parameter must be in it with its
 * shape; buffers may be; other tensors are ignored with a warning. Weights that the model ties must
 * be equal under all their names. */
ACC_API acc_status acc_model_load_weights(acc_model* model, const char* path) ACC_NOEXCEPT;

typedef struct acc_export_config {
  size_t size;
  int32_t dtype;             /* acc_dtype of parameters; negative: that of the master weights */
  uint64_t max_shard_nbytes; /* largest file of a folder; 0: 10 GB */
} acc_export_config;
#define ACC_EXPORT_CONFIG_INITIALIZER \
  { sizeof(acc_export_config), -1, 0 }
/* Writes all parameters and buffers, on rank 0: to one file if the path ends in ".safetensors" or
 * ".bin" (torch.save), else to a folder of safetensors files with an index. The file or folder is
 * complete or absent. config: NULL for the initializer's values. */
ACC_API acc_status acc_model_export_weights(acc_model* model, const char* path,
                                            const acc_export_config* config) ACC_NOEXCEPT;

/* A full tensor, valid during the call of the visit function. data: [shape], row-major. */
typedef struct acc_full_tensor {
  size_t size;
  const char* name; /* full name; a tied parameter is visited under each of its names */
  const int64_t* shape;
  size_t num_dims;
  int32_t dtype; /* acc_dtype of the master weights, or of the buffer */
  const void* data;
} acc_full_tensor;
typedef void (*acc_visit_function)(const acc_full_tensor* tensor, void* context);

typedef struct acc_state_dict_config {
  size_t size;
  int32_t rank0_only;     /* 1: the function is called on rank 0 only */
  int32_t offload_to_cpu; /* 1: data is host memory; 0: device memory */
} acc_state_dict_config;
#define ACC_STATE_DICT_CONFIG_INITIALIZER \
  { sizeof(acc_state_dict_config), 1, 1 }
/* Calls visit(tensor, context) for each full parameter and buffer, with one unit in memory at a
 * time. The function must not use the runtime. config: NULL for the initializer's values. */
ACC_API acc_status acc_model_state_dict(acc_model* model, const acc_state_dict_config* config,
                                        acc_visit_function visit, void* context) ACC_NOEXCEPT;

/* ---- checkpoints -----------------------------------------------------------------------------*/

typedef enum acc_value_kind {
  ACC_VALUE_INTEGER = 0, /* in field integer */
  ACC_VALUE_REAL = 1,    /* in field real */
  ACC_VALUE_BYTES = 2    /* in field bytes: [num_bytes], any bytes */
} acc_value_kind;

/* A small named value of the program that is saved in a checkpoint (its step, its position in the
 * data, the state of its random numbers, …). */
typedef struct acc_program_value {
  size_t size;
  const char* name; /* UTF-8, not beginning with "acc.seed." */
  int32_t kind;     /* acc_value_kind */
  int32_t of_rank;  /* 1: each rank saves its value; 0: rank 0's is saved and all ranks load it */
  int64_t integer;
  double real;
  const void* bytes;
  size_t num_bytes;
} acc_program_value;
#define ACC_PROGRAM_VALUE_INITIALIZER \
  { sizeof(acc_program_value), NULL, ACC_VALUE_INTEGER, 0, 0, 0.0, NULL, 0 }

/* The values of a loaded checkpoint; freed by acc_program_state_free. */
typedef struct acc_program_state acc_program_state;

/* Writes a checkpoint folder in Accelerate's layout, in the form of fsdp_state_dict_type. The
 * folder is complete or absent. values: [count], all with the same `size`. */
ACC_API acc_status acc_runtime_save(acc_runtime* runtime, const char* directory,
                                    const acc_model* model, const acc_optimizer* optimizer,
                                    const acc_program_value* values, size_t count) ACC_NOEXCEPT;
/* Saves the state of the call beside the training: a thread copies this rank's values to host
 * memory and writes them. What a step, or a load, changes and the thread has not copied is copied
 * before. At most one save is in flight. refuse: 1: saves nothing, on all ranks alike, if one is in
 * flight; 0: waits for its end. saved: receives 1, or 0 if it has refused; may be NULL. A failure
 * to write does not disturb the training: rank 0 logs a warning, and acc_runtime_wait_save returns
 * it. acc_runtime_save, acc_runtime_load and acc_runtime_free wait for a save in flight. Not
 * collective, unless refuse is 1, but all ranks call it. Returns ACC_NOT_SUPPORTED where a save
 * gathers weights: for FULL_STATE_DICT, and for a 16-bit model. */
ACC_API acc_status acc_runtime_save_async(acc_runtime* runtime, const char* directory,
                                          const acc_model* model, const acc_optimizer* optimizer,
                                          const acc_program_value* values, size_t count,
                                          int32_t refuse, int32_t* saved) ACC_NOEXCEPT;
/* Receives 1 while this rank's save is in flight, else 0. Not collective. */
ACC_API acc_status acc_runtime_saving(const acc_runtime* runtime, int32_t* saving) ACC_NOEXCEPT;
/* Waits for the save in flight, if there is one. Returns ACC_CONFIG with the reason, on all ranks
 * alike, if it or an earlier one has failed since the last call. */
ACC_API acc_status acc_runtime_wait_save(acc_runtime* runtime) ACC_NOEXCEPT;
/* Loads a checkpoint saved with any strategy, precision and number of ranks by this library, torch,
 * Accelerate or DeepSpeed. state: may be NULL; else the caller frees *state. */
ACC_API acc_status acc_runtime_load(acc_runtime* runtime, const char* directory, acc_model* model,
                                    acc_optimizer* optimizer,
                                    acc_program_state** state) ACC_NOEXCEPT;

/* A model and its optimizer. */
typedef struct acc_trained {
  acc_model* model;
  acc_optimizer* optimizer;
} acc_trained;
/* The same for several models. parts: [num_parts], in the same order for saving and loading. */
ACC_API acc_status acc_runtime_save_all(acc_runtime* runtime, const char* directory,
                                        const acc_trained* parts, size_t num_parts,
                                        const acc_program_value* values, size_t count) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_load_all(acc_runtime* runtime, const char* directory,
                                        const acc_trained* parts, size_t num_parts,
                                        acc_program_state** state) ACC_NOEXCEPT;

/* Reads a value of all ranks, or of this rank. ACC_NOT_FOUND: the checkpoint has no such value. The
 * pointers in *value are valid as long as the state. Not collective. */
ACC_API acc_status acc_program_state_get(const acc_program_state* state, const char* name,
                                         acc_program_value* value) ACC_NOEXCEPT;
ACC_API acc_status acc_program_state_get_of_rank(const acc_program_state* state, const char* name,
                                                 acc_program_value* value) ACC_NOEXCEPT;
ACC_API void acc_program_state_free(acc_program_state* state) ACC_NOEXCEPT;

/* ---- series ----------------------------------------------------------------------------------*/

/* The checkpoints of one run: folders "FOLDER/checkpoint_<n>", and the file FOLDER/latest with the
 * name of the newest. */
typedef struct acc_checkpoint_series acc_checkpoint_series;
typedef struct acc_checkpoint_series_config {
  size_t size;
  int32_t total_limit; /* number of checkpoints to keep; 0: all */
} acc_checkpoint_series_config;
#define ACC_CHECKPOINT_SERIES_CONFIG_INITIALIZER \
  { sizeof(acc_checkpoint_series_config), 0 }
/* Makes a series. config: NULL for the initializer's values. The runtime must outlive the series.
 * Creating and freeing are not collective. */
ACC_API acc_status acc_checkpoint_series_create(acc_runtime* runtime, const char* folder,
                                                const acc_checkpoint_series_config* config,
                                                acc_checkpoint_series** series) ACC_NOEXCEPT;
ACC_API void acc_checkpoint_series_free(acc_checkpoint_series* series) ACC_NOEXCEPT;
/* Path of the newest complete checkpoint, with a final NUL, the same on every rank. path:
 * [capacity] bytes. ACC_NOT_FOUND: there is none. ACC_INVALID_ARGUMENT: capacity is too small. */
ACC_API acc_status acc_checkpoint_series_newest(const acc_checkpoint_series* series, char* path,
                                                size_t capacity) ACC_NOEXCEPT;
/* Saves the next checkpoint and removes the oldest ones beyond the limit. */
ACC_API acc_status acc_checkpoint_series_save(acc_checkpoint_series* series, const acc_model* model,
                                              const acc_optimizer* optimizer,
                                              const acc_program_value* values,
                                              size_t count) ACC_NOEXCEPT;
/* Receives 1 if acc_checkpoint_series_keep_in_memory would copy, else 0. Not collective. */
ACC_API acc_status acc_checkpoint_series_is_memory_due(const acc_checkpoint_series* series,
                                                       const acc_optimizer* optimizer,
                                                       int32_t* due) ACC_NOEXCEPT;
/* Begins to copy the state to memory that outlives this process, if the number of steps is a
 * multiple of the setting memory_checkpoint_every, or the ranks of an elastic job
 * (--elastic_replicas) change now, and the launcher gives such memory; a thread makes the copy
 * beside the training. Called after each step, on all ranks. kept: receives 1 if it has begun, else
 * 0; may be NULL. A failure is a warning. Not collective. ACC_PEER_LOST: the ranks change now. */
ACC_API acc_status acc_checkpoint_series_keep_in_memory(acc_checkpoint_series* series,
                                                        const acc_model* model,
                                                        const acc_optimizer* optimizer,
                                                        const acc_program_value* values,
                                                        size_t count, int32_t* kept) ACC_NOEXCEPT;
/* Loads the newest state: that in the memory of the machines, if all of it is whole, whatever
 * number of ranks has made it, and if its step is not before that of the newest checkpoint; else
 * that checkpoint. from: receives the path of the checkpoint, or "memory"; [capacity] with the
 * final NUL, or NULL. state: may be NULL; else the caller frees *state. Returns ACC_NOT_FOUND if
 * there is neither. */
ACC_API acc_status acc_checkpoint_series_resume(acc_checkpoint_series* series, acc_model* model,
                                                acc_optimizer* optimizer, acc_program_state** state,
                                                char* from, size_t capacity) ACC_NOEXCEPT;
/* Goes on in this process after ACC_PEER_LOST, in a job that was started with --rejoin: waits until
 * the launcher has given the ranks of the processes that ended to others, makes all process groups
 * anew, and loads as acc_checkpoint_series_resume does. Handles stay valid. End the open scopes
 * before; their ends may fail, too. The processes that are new call acc_checkpoint_series_resume as
 * their first collective call after they have made their optimizer. Fill functions of pure
 * initialisers are called again. With --elastic_replicas acc_runtime_rank and
 * acc_runtime_world_size may be others afterwards. Collective. ACC_NOT_FOUND: there is nothing to
 * load, and the model has its initial values. ACC_NOT_SUPPORTED: the launcher replaces no ranks, or
 * this job cannot rejoin (docs/checkpoints.md, "Rejoin"). ACC_TIMEOUT: none came in time. */
ACC_API acc_status acc_checkpoint_series_rejoin(acc_checkpoint_series* series, acc_model* model,
                                                acc_optimizer* optimizer, acc_program_state** state,
                                                char* from, size_t capacity) ACC_NOEXCEPT;

/* *can = 1 if a call that failed with `status` has lost a rank, and the launcher replaces ranks, so
 * that acc_checkpoint_series_rejoin may go on; else 0. Not collective. */
ACC_API acc_status acc_checkpoint_series_can_rejoin(const acc_checkpoint_series* series,
                                                    acc_status status, int32_t* can) ACC_NOEXCEPT;

/* ---- membership ------------------------------------------------------------------------------*/

/* The launcher's page of the job's membership, for a process that begins its program again when
 * other processes get the ranks that are lost (--rejoin). Each round of the job is an epoch. */
typedef struct acc_membership acc_membership;

/* Where the ranks of an epoch meet. */
typedef struct acc_meeting {
  size_t size;
  uint32_t epoch;
  const char* host; /* of the job's store; valid until the next acc_membership_enter */
  int32_t port;
  const char* secret; /* ACC_JOB_SECRET; valid as `host` */
  int32_t restart_count;
  /* With --elastic_replicas the rank and the number of machines; else 0: both are as they were. */
  int32_t machine_rank;
  int32_t num_machines;
} acc_meeting;
#define ACC_MEETING_INITIALIZER \
  { sizeof(acc_meeting), 0, "", 0, "", 0, 0, 0 }

typedef enum acc_epoch_state {
  ACC_EPOCH_GOES_ON = 0,
  ACC_EPOCH_LOST = 1, /* ranks are lost, and the launcher gives them to other processes */
  ACC_EPOCH_LAST = 2, /* the launcher ends the workers of this machine */
  ACC_EPOCH_ENDED = 3 /* the ranks leave it between two steps, because machines join */
} acc_epoch_state;

/* path: ACC_MEMBERSHIP. ACC_CONFIG: it is no page of a launcher. */
ACC_API acc_status acc_membership_open(const char* path, acc_membership** membership) ACC_NOEXCEPT;
ACC_API void acc_membership_free(acc_membership* membership) ACC_NOEXCEPT;
/* Waits for an epoch that was not entered before, enters it, and tells where its ranks meet. A
 * runtime meets the others in this epoch alone if ACC_MEMBERSHIP is followed by "@" and its number.
 * Not collective. ACC_COLLECTIVE, with the reason: none follows; ACC_TIMEOUT: none came in time. */
ACC_API acc_status acc_membership_enter(acc_membership* membership, int64_t timeout_ms,
                                        acc_meeting* meeting) ACC_NOEXCEPT;
/* Gives the acc_epoch_state of the epoch that was entered last. timeout_ms: how long to wait while
 * it goes on. ACC_INVALID_ARGUMENT: none was entered. */
ACC_API acc_status acc_membership_state(acc_membership* membership, int64_t timeout_ms,
                                        int32_t* state) ACC_NOEXCEPT;
/* Tells the launcher that this worker has met the others in that epoch. local_rank: LOCAL_RANK.
 * ACC_INVALID_ARGUMENT: none was entered. */
ACC_API acc_status acc_membership_joined(acc_membership* membership,
                                         int32_t local_rank) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_CHECKPOINT_H */
