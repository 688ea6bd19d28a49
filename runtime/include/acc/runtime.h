#ifndef ACC_RUNTIME_H
#define ACC_RUNTIME_H

/*
 * The sharded-training runtime for C and for whatever calls C: acc/runtime.hpp function by
 * function, but for settings in hand, whose place the plugins take. What reads and writes files is
 * in acc/runtime_checkpoint.h. Conventions:
 *
 *  - Every function that can fail returns acc_status; ACC_OK is 0. On failure, results are left as
 *    they were and acc_last_error() tells the reason. Nothing is thrown across this border.
 *  - Handles are opaque. What a *_free or *_end function takes is the caller's to give back, in any
 *    order that keeps a use inside its model and a model inside its runtime. Units belong to their
 *    model. Freeing NULL does nothing.
 *  - Structs that have an _INITIALIZER begin with their size, which it sets: a program built
 * against an older header works with a newer library, whose new fields then have their defaults.
 *  - One thread uses a runtime and what it made; all ranks make the same calls in the same order.
 *    "Collective" below: the call waits for the other ranks, and fails with ACC_COLLECTIVE,
 *    ACC_TIMEOUT or ACC_CONNECTION where one of them failed, left or called something else.
 *  - Every function gives ACC_INVALID_ARGUMENT for a NULL that is not allowed, an unknown kind, a
 *    call out of order, a handle of another model. What else it gives is told with it.
 *  - Strings are UTF-8, copied where they are kept. Counts are of elements unless the name says
 *    bytes; arrays are row-major. "Device memory" is that of acc_runtime_device.
 */

#include "acc/base/export.hpp"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define ACC_NOEXCEPT noexcept
#else
#define ACC_NOEXCEPT
#endif

typedef enum acc_status {
  ACC_OK = 0,
  ACC_INVALID_ARGUMENT = 1,
  ACC_CONFIG = 2,
  ACC_NOT_FOUND = 3,
  ACC_TIMEOUT = 4,
  ACC_CONNECTION = 5,
  ACC_PROTOCOL = 6,
  ACC_PROCESS = 7,
  ACC_COLLECTIVE = 8,
  ACC_DEVICE = 9,
  ACC_OUT_OF_MEMORY = 10,
  ACC_INTERNAL = 11
} acc_status;

/* Reason of this thread's last failure, valid until its next call; "" before the first. */
ACC_API const char* acc_last_error(void) ACC_NOEXCEPT;
/* Rank that caused this thread's last failure, -1 where none is known. */
ACC_API int acc_last_error_rank(void) ACC_NOEXCEPT;
/* "config", "timeout", … */
ACC_API const char* acc_status_name(acc_status status) ACC_NOEXCEPT;
/* What a program should exit with: 0, 2 for bad input, 124 for a time limit, else 1. */
ACC_API int acc_exit_status(acc_status status) ACC_NOEXCEPT;

typedef struct acc_runtime acc_runtime;
typedef struct acc_model acc_model;
typedef struct acc_unit acc_unit;
typedef struct acc_optimizer acc_optimizer;
typedef struct acc_forward_use acc_forward_use;
typedef struct acc_backward_use acc_backward_use;
typedef struct acc_no_grad acc_no_grad;
typedef struct acc_no_sync acc_no_sync;
typedef struct acc_saved_activation acc_saved_activation;

/* ---- runtime ---------------------------------------------------------------------------------*/

/* Rank, groups and settings as the launcher said them in the environment; one rank without it.
 * Collective. ACC_CONFIG for settings that contradict each other or that this library lacks. */
ACC_API acc_status acc_runtime_from_environment(acc_runtime** runtime) ACC_NOEXCEPT;
/* After its models, optimizers and saved activations. */
ACC_API void acc_runtime_free(acc_runtime* runtime) ACC_NOEXCEPT;

/* ---- plugins ---------------------------------------------------------------------------------*/

/* What a program says for itself, over what the launcher injected: fields by the names of
 * Accelerate's plugins (acc/plugins/fsdp_plugin.hpp and deepspeed_plugin.hpp list them), values as
 * text: "sharding_strategy", "FULL_SHARD". ACC_CONFIG names an unknown field or a wrong value, and
 * at the start both places of what excludes each other. A plugin may be freed once the runtime is
 * there. */
typedef struct acc_fsdp_plugin acc_fsdp_plugin;
typedef struct acc_deepspeed_plugin acc_deepspeed_plugin;

ACC_API acc_status acc_fsdp_plugin_create(acc_fsdp_plugin** plugin) ACC_NOEXCEPT;
ACC_API void acc_fsdp_plugin_free(acc_fsdp_plugin* plugin) ACC_NOEXCEPT;
ACC_API acc_status acc_fsdp_plugin_set(acc_fsdp_plugin* plugin, const char* field,
                                       const char* value) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_from_environment_with_fsdp(const acc_fsdp_plugin* plugin,
                                                          acc_runtime** runtime) ACC_NOEXCEPT;

ACC_API acc_status acc_deepspeed_plugin_create(acc_deepspeed_plugin** plugin) ACC_NOEXCEPT;
ACC_API void acc_deepspeed_plugin_free(acc_deepspeed_plugin* plugin) ACC_NOEXCEPT;
ACC_API acc_status acc_deepspeed_plugin_set(acc_deepspeed_plugin* plugin, const char* field,
                                            const char* value) ACC_NOEXCEPT;
ACC_API acc_status acc_runtime_from_environment_with_deepspeed(const acc_deepspeed_plugin* plugin,
                                                               acc_runtime** runtime) ACC_NOEXCEPT;

/* ---- ranks -----------------------------------------------------------------------------------*/

/* -1 for a NULL runtime. */
ACC_API int acc_runtime_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_local_rank(const acc_runtime* runtime) ACC_NOEXCEPT;
ACC_API int acc_runtime_world_size(const acc_runtime* runtime) ACC_NOEXCEPT;
/* Micro-steps (forward and backward of a micro-batch) of an optimizer step, at least 1. */
ACC_API int acc_runtime_gradient_accumulation_steps(const acc_runtime* runtime) ACC_NOEXCEPT;
/* 1: the program is asked to keep a block's input alone (acc_runtime_keep) and to compute the block
 * again (acc_recompute_begin) before its backward; else 0. -1 for a NULL runtime. */
ACC_API int acc_runtime_activation_checkpointing(const acc_runtime* runtime) ACC_NOEXCEPT;

typedef enum acc_device_kind { ACC_DEVICE_CPU = 0, ACC_DEVICE_CUDA = 1 } acc_device_kind;
typedef struct acc_device_info {
  size_t size;
  int32_t kind;  /* acc_device_kind */
  int32_t index; /* of the GPU among those this process sees */
  void* stream;  /* GPU: the cudaStream_t on which the program must compute */
} acc_device_info;
#define ACC_DEVICE_INFO_INITIALIZER \
  { sizeof(acc_device_info), ACC_DEVICE_CPU, 0, NULL }
/* Where the program computes. */
ACC_API acc_status acc_runtime_device(const acc_runtime* runtime,
                                      acc_device_info* info) ACC_NOEXCEPT;

/* One line for the user: strategy, groups, precision, cut to fit `capacity` bytes with the final
 * NUL. */
ACC_API acc_status acc_runtime_describe(const acc_runtime* runtime, char* text,
                                        size_t capacity) ACC_NOEXCEPT;
/* *is_last = 1 when this micro-step's backward was the last before acc_optimizer_step, else 0. */
ACC_API acc_status acc_runtime_last_micro_step(const acc_runtime* runtime, const acc_model* model,
                                               int* is_last) ACC_NOEXCEPT;
/* The mean of all ranks' values, on every rank. Collective. */
ACC_API acc_status acc_runtime_mean(acc_runtime* runtime, double value, double* mean) ACC_NOEXCEPT;
/* values: [count], the same count on all ranks; all: [world_size * count], rank-major, on every
 * rank. Collective. */
ACC_API acc_status acc_runtime_all_gather(acc_runtime* runtime, const double* values, size_t count,
                                          double* all) ACC_NOEXCEPT;
/* Returns when all ranks have called it. Collective. */
ACC_API acc_status acc_runtime_barrier(acc_runtime* runtime) ACC_NOEXCEPT;

/* Keeps a copy of data: [nbytes], device memory, until it is wanted again: in host memory where
 * fsdp_activation_checkpointing_offload holds, else where it is. The copy runs beside what is
 * computed; data may be overwritten by work that is issued after the call. */
ACC_API acc_status acc_runtime_keep(acc_runtime* runtime, const void* data, size_t nbytes,
                                    acc_saved_activation** saved) ACC_NOEXCEPT;
/* Starts to bring it back, so that restore does not wait. */
ACC_API acc_status acc_saved_activation_prefetch(acc_saved_activation* saved) ACC_NOEXCEPT;
/* data: [nbytes], device memory, valid for work on the device's stream until the handle is freed.
 */
ACC_API acc_status acc_saved_activation_restore(acc_saved_activation* saved,
                                                const void** data) ACC_NOEXCEPT;
ACC_API void acc_saved_activation_free(acc_saved_activation* saved) ACC_NOEXCEPT;

/* ---- model -----------------------------------------------------------------------------------*/

typedef enum acc_dtype { ACC_FLOAT32 = 0, ACC_BFLOAT16 = 1, ACC_FLOAT16 = 2 } acc_dtype;

typedef struct acc_model_config {
  size_t size;
  uint64_t seed; /* of the initialisers, whose values do not depend on the number of ranks */
  int32_t dtype; /* acc_dtype in which the program brings its weights: without mixed precision
                    everything is then kept in it, with it master weights are fp32 */
  int32_t bfloat16_on_cpu; /* 1: the program takes bfloat16 weights on a CPU as they are and gives
                              such gradients; 0: there both are fp32 for it */
  int32_t unused_units; /* 0: acc_optimizer_step refuses a unit with trained parameters of which a
                           forward use had no backward use since the last step, or a backward use
                           asked for no gradient; 1: such gradients count as zero */
} acc_model_config;
/* Seed 0, fp32. */
#define ACC_MODEL_CONFIG_INITIALIZER \
  { sizeof(acc_model_config), 0, ACC_FLOAT32, 0, 0 }

/* A model in fp32. */
ACC_API acc_status acc_model_create(acc_runtime* runtime, uint64_t seed,
                                    acc_model** model) ACC_NOEXCEPT;
/* config: NULL for the initializer's values. ACC_CONFIG where the settings and the dtype do not go
 * together. */
ACC_API acc_status acc_model_create_with(acc_runtime* runtime, const acc_model_config* config,
                                         acc_model** model) ACC_NOEXCEPT;
/* With its units. Waits for collectives under way. */
ACC_API void acc_model_free(acc_model* model) ACC_NOEXCEPT;

/* Units are declared, with all their parameters and buffers, before the first use of any of them,
 * before acc_model_load_weights and before an optimizer; afterwards ACC_INVALID_ARGUMENT. What a
 * unit holds is gathered and freed together. The root's uses may contain those of other units;
 * there is at most one. class_name is what fsdp_transformer_layer_cls_to_wrap names. */
ACC_API acc_status acc_model_root(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;
ACC_API acc_status acc_model_unit(acc_model* model, const char* name, const char* class_name,
                                  acc_unit** unit) ACC_NOEXCEPT;

typedef enum acc_initializer_kind {
  ACC_INITIALIZER_CONSTANT = 0, /* a */
  ACC_INITIALIZER_NORMAL = 1,   /* mean 0, standard deviation a */
  ACC_INITIALIZER_UNIFORM = 2,  /* [a, b) */
  ACC_INITIALIZER_CUSTOM = 3,   /* fill, whose values may differ from rank to rank */
  ACC_INITIALIZER_PURE = 4      /* fill, a function of its arguments alone, alike on all ranks */
} acc_initializer_kind;

/* Fills elements [offset, offset + count) of a parameter or buffer; `stream` differs per parameter
 * and seed. A pure one makes on each rank what that keeps, and nothing is sent. A custom one is
 * asked on rank 0 alone with fsdp_sync_module_states, for all ranks; without, each rank's own for
 * what it keeps. */
typedef void (*acc_fill_function)(uint64_t stream, int64_t offset, float* out, size_t count,
                                  void* context);

typedef struct acc_parameter_config {
  size_t size;
  int32_t trainable;    /* 0: frozen */
  int32_t weight_decay; /* 0: the optimizer's weight decay does not apply */
  int32_t initializer;  /* acc_initializer_kind */
  float a, b;
  acc_fill_function fill; /* and its context, for the last two kinds; both outlive the model */
  void* context;
} acc_parameter_config;
/* Trainable, decayed, zeros. */
#define ACC_PARAMETER_CONFIG_INITIALIZER \
  { sizeof(acc_parameter_config), 1, 1, ACC_INITIALIZER_CONSTANT, 0.0F, 0.0F, NULL, NULL }

/* Every unit except the one that it was registered in refuses it. */
typedef struct acc_parameter {
  int32_t index;
  int32_t unit; /* number of its unit, unique in the process */
} acc_parameter;

/* The full name is "<unit>.<name>" ("<name>" where the unit's is empty). shape: [num_dims],
 * outermost first, each at least 1; none: one element. config: NULL for the initializer's values.
 */
ACC_API acc_status acc_unit_parameter(acc_unit* unit, const char* name, const int64_t* shape,
                                      size_t num_dims, const acc_parameter_config* config,
                                      acc_parameter* parameter) ACC_NOEXCEPT;
/* A second full name for a parameter of this unit (a tied weight): in files under both, stored,
 * reduced and counted once. */
ACC_API acc_status acc_unit_tie(acc_unit* unit, const char* alias_full_name,
                                acc_parameter parameter) ACC_NOEXCEPT;

/* As acc_parameter. */
typedef struct acc_buffer {
  int32_t index;
  int32_t unit;
} acc_buffer;

/* Values that are neither trained nor sharded: whole on every rank, rank 0's at first where
 * fsdp_sync_module_states holds. As acc_unit_parameter; of config only the initializer counts. */
ACC_API acc_status acc_unit_buffer(acc_unit* unit, const char* name, const int64_t* shape,
                                   size_t num_dims, const acc_parameter_config* config,
                                   acc_buffer* buffer) ACC_NOEXCEPT;
/* data: [shape], in acc_model_buffer_dtype, device memory; the program's to write. */
ACC_API acc_status acc_unit_buffer_data(acc_unit* unit, acc_buffer buffer,
                                        void** data) ACC_NOEXCEPT;

/* What parameters and gradients are for the program; all raw pointers below are to it. */
ACC_API acc_status acc_model_compute_dtype(const acc_model* model, acc_dtype* dtype) ACC_NOEXCEPT;
ACC_API acc_status acc_model_buffer_dtype(const acc_model* model, acc_dtype* dtype) ACC_NOEXCEPT;
/* Elements of all parameters, tied ones once; -1 for a NULL model. */
ACC_API int64_t acc_model_numel(const acc_model* model) ACC_NOEXCEPT;

/* Bytes that this rank holds for the model; fields as in acc/runtime/reports.hpp. */
typedef struct acc_memory_report {
  size_t size;
  int64_t parameter_bytes;
  int64_t gradient_bytes;
  int64_t optimizer_bytes;
  int64_t gathered_bytes;
  int64_t gradient_buffer_bytes;
  int64_t device_bytes;
  int64_t device_peak_bytes;
  int64_t pinned_bytes;
  int64_t buffer_bytes;
} acc_memory_report;
#define ACC_MEMORY_REPORT_INITIALIZER \
  { sizeof(acc_memory_report), 0, 0, 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_memory(const acc_model* model, acc_memory_report* report) ACC_NOEXCEPT;

/* What this rank handed to collectives since the last reset; fields likewise. */
typedef struct acc_traffic_report {
  size_t size;
  int64_t gathered_elements;
  int64_t gathered_elements_moved;
  int64_t gather_calls;
  int64_t reduced_elements;
  int64_t reduce_calls;
  int64_t all_reduced_elements;
  int64_t all_reduce_calls;
  int64_t secondary_elements;
} acc_traffic_report;
#define ACC_TRAFFIC_REPORT_INITIALIZER \
  { sizeof(acc_traffic_report), 0, 0, 0, 0, 0, 0, 0, 0 }
ACC_API acc_status acc_model_traffic(const acc_model* model,
                                     acc_traffic_report* report) ACC_NOEXCEPT;
ACC_API acc_status acc_model_reset_traffic(acc_model* model) ACC_NOEXCEPT;

/* ---- uses ------------------------------------------------------------------------------------*/

/* A use brackets a forward or backward: in it the unit's parameters are full. It must be ended;
 * `end` takes the handle back, also where it fails. A call that is given one of the last 64 handles
 * that this thread ended returns ACC_INVALID_ARGUMENT; older ones are freed. Begin and end are
 * collective.
 *
 * Begin gives ACC_INVALID_ARGUMENT for a micro-step beyond the accumulation's and for a backward
 * without its forward. */
ACC_API acc_status acc_forward_begin(acc_unit* unit, acc_forward_use** use) ACC_NOEXCEPT;
/* A forward that is computed once more for the backward that follows: expects no backward of its
 * own, and what it gathers stays for that backward. Ended by acc_forward_end. */
ACC_API acc_status acc_recompute_begin(acc_unit* unit, acc_forward_use** use) ACC_NOEXCEPT;
/* data: [shape], fp32, read-only, until the use ends. ACC_INVALID_ARGUMENT where the compute dtype
 * is another. */
ACC_API acc_status acc_forward_parameter(const acc_forward_use* use, acc_parameter parameter,
                                         const float** data) ACC_NOEXCEPT;
/* In the model's compute dtype, device memory. */
ACC_API acc_status acc_forward_raw(const acc_forward_use* use, acc_parameter parameter,
                                   const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_forward_end(acc_forward_use* use) ACC_NOEXCEPT;

ACC_API acc_status acc_backward_begin(acc_unit* unit, acc_backward_use** use) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_parameter(const acc_backward_use* use, acc_parameter parameter,
                                          const float** data) ACC_NOEXCEPT;
/* Compute data = beta * data + gradient; data: [shape], fp32, undefined before where beta is 0, and
 * NULL for a frozen parameter. Each call counts as a write: ask once per write. */
ACC_API acc_status acc_backward_grad(acc_backward_use* use, acc_parameter parameter, float** data,
                                     float* beta) ACC_NOEXCEPT;
/* The same, zero-filled where nothing was written yet: always to be added to. */
ACC_API acc_status acc_backward_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                            float** data) ACC_NOEXCEPT;
/* The three above in the model's compute dtype, device memory. */
ACC_API acc_status acc_backward_raw(const acc_backward_use* use, acc_parameter parameter,
                                    const void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad(acc_backward_use* use, acc_parameter parameter,
                                         void** data, float* beta) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_raw_grad_to_add(acc_backward_use* use, acc_parameter parameter,
                                                void** data) ACC_NOEXCEPT;
ACC_API acc_status acc_backward_end(acc_backward_use* use) ACC_NOEXCEPT;

/* While the handle lives, forward uses expect no backward (evaluation). End before the model. */
ACC_API acc_status acc_no_grad_begin(acc_model* model, acc_no_grad** scope) ACC_NOEXCEPT;
ACC_API void acc_no_grad_end(acc_no_grad* scope) ACC_NOEXCEPT;
/* While the handle lives, micro-steps that end are not reduced: their gradients are accumulated
 * whole on each rank, and the next micro-step outside reduces all of them at once. */
ACC_API acc_status acc_no_sync_begin(acc_model* model, acc_no_sync** scope) ACC_NOEXCEPT;
ACC_API void acc_no_sync_end(acc_no_sync* scope) ACC_NOEXCEPT;

/* ---- optimizer -------------------------------------------------------------------------------*/

/* Decoupled weight decay, as torch.optim.AdamW. */
typedef struct acc_adamw_config {
  size_t size;
  double lr, beta1, beta2, eps, weight_decay;
} acc_adamw_config;
#define ACC_ADAMW_CONFIG_INITIALIZER \
  { sizeof(acc_adamw_config), 1e-3, 0.9, 0.999, 1e-8, 1e-2 }

/* As torch.optim.SGD. */
typedef struct acc_sgd_config {
  size_t size;
  double lr, momentum, weight_decay;
  int32_t nesterov;
} acc_sgd_config;
#define ACC_SGD_CONFIG_INITIALIZER \
  { sizeof(acc_sgd_config), 1e-3, 0.0, 0.0, 0 }

/* Parameters with settings of their own. Of several groups in an array all have the same size. */
typedef struct acc_parameter_group {
  size_t size;
  const char* name;
  const char* const* parameters; /* [num_parameters] full names; a trailing * stands for any rest */
  size_t num_parameters;
  double lr;           /* negative: the optimizer's */
  double weight_decay; /* negative: the optimizer's */
} acc_parameter_group;
#define ACC_PARAMETER_GROUP_INITIALIZER \
  { sizeof(acc_parameter_group), NULL, NULL, 0, -1.0, -1.0 }

/* config: NULL for the initializer's values. Makes the model complete; collective. */
ACC_API acc_status acc_optimizer_adamw(acc_model* model, const acc_adamw_config* config,
                                       acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_sgd(acc_model* model, const acc_sgd_config* config,
                                     acc_optimizer** optimizer) ACC_NOEXCEPT;
/* The same with groups: [num_groups]. ACC_CONFIG for a group that names nothing and for parameters
 * that two groups name. */
ACC_API acc_status acc_optimizer_adamw_groups(acc_model* model, const acc_adamw_config* config,
                                              const acc_parameter_group* groups, size_t num_groups,
                                              acc_optimizer** optimizer) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_sgd_groups(acc_model* model, const acc_sgd_config* config,
                                            const acc_parameter_group* groups, size_t num_groups,
                                            acc_optimizer** optimizer) ACC_NOEXCEPT;
/* What the launcher's configuration says (`optimizer` and `scheduler` of a DeepSpeed file).
 * ACC_CONFIG where it says nothing. */
ACC_API acc_status acc_optimizer_from_settings(acc_model* model,
                                               acc_optimizer** optimizer) ACC_NOEXCEPT;
/* Before its model. */
ACC_API void acc_optimizer_free(acc_optimizer* optimizer) ACC_NOEXCEPT;

typedef struct acc_step_info {
  size_t size;
  int64_t step;            /* steps made so far */
  double grad_norm;        /* global L2 norm before clipping */
  double clip_coefficient; /* 1: not clipped */
  double lr;               /* with which it was made, of the parameters outside all groups */
  double loss_scale;       /* by which its gradients had been multiplied */
  int32_t skipped;         /* 1: a gradient was not finite, nothing was updated, step stands */
  int64_t skipped_steps;   /* in all, this one included */
  int64_t tiles;           /* in how many pieces the shards were updated (sub_group_size) */
} acc_step_info;
#define ACC_STEP_INFO_INITIALIZER \
  { sizeof(acc_step_info), 0, 0.0, 1.0, 0.0, 1.0, 0, 0, 0 }
/* Finishes the reductions, takes the mean over ranks and micro-steps, clips, updates, forgets the
 * gradients. Collective. info: may be NULL. ACC_INVALID_ARGUMENT, with unit and rank, where a rank
 * forgot a backward or its gradients (acc_model_config.unused_units), and ACC_COLLECTIVE with the
 * same text on the other ranks. */
ACC_API acc_status acc_optimizer_step(acc_optimizer* optimizer, acc_step_info* info) ACC_NOEXCEPT;
/* With fp16, by what the program multiplies the gradient of its loss before the backward; else 1.
 */
ACC_API acc_status acc_optimizer_loss_scale(const acc_optimizer* optimizer,
                                            double* loss_scale) ACC_NOEXCEPT;
/* Steps made, those before a checkpoint that was loaded included. */
ACC_API acc_status acc_optimizer_steps(const acc_optimizer* optimizer, int64_t* steps) ACC_NOEXCEPT;

/* Learning rate of the parameters that no group names. set_lr ends their schedule. */
ACC_API acc_status acc_optimizer_set_lr(acc_optimizer* optimizer, double lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_lr(const acc_optimizer* optimizer, double* lr) ACC_NOEXCEPT;
/* The same of a group; ACC_INVALID_ARGUMENT where there is none of that name. */
ACC_API acc_status acc_optimizer_set_group_lr(acc_optimizer* optimizer, const char* group,
                                              double lr) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_group_lr(const acc_optimizer* optimizer, const char* group,
                                          double* lr) ACC_NOEXCEPT;

typedef enum acc_lr_schedule_kind {
  /* Those of transformers: base times a factor that rises linearly from 0 in warmup_steps, then */
  ACC_LR_CONSTANT = 0, /* is 1 */
  ACC_LR_LINEAR = 1,   /* falls linearly to 0 at total_steps */
  ACC_LR_COSINE = 2,   /* follows `cycles` waves of a cosine until total_steps */
  /* DeepSpeed's; steps 0 and 1 both have the rate that the warm-up begins with */
  ACC_LR_WARMUP = 3,       /* WarmupLR: from min_lr to max_lr */
  ACC_LR_WARMUP_DECAY = 4, /* WarmupDecayLR: then linearly to min_lr at total_steps */
  ACC_LR_WARMUP_COSINE =
      5,            /* WarmupCosineLR: base times a ratio that rises from warmup_min_ratio to
                       1, then falls along half a cosine to cos_min_ratio at total_steps */
  ACC_LR_CUSTOM = 6 /* function */
} acc_lr_schedule_kind;

/* The learning rate of a step: `step` counts the steps made so far, `base` is what the optimizer or
 * one of its groups was made with. A pure function of its arguments. */
typedef double (*acc_lr_function)(int64_t step, double base, void* context);

typedef struct acc_lr_schedule_config {
  size_t size;
  int32_t kind;          /* acc_lr_schedule_kind */
  int32_t linear_warmup; /* DeepSpeed's: 1: with the step; 0: with its logarithm */
  int64_t warmup_steps;  /* negative: 0; DeepSpeed's: 1000 */
  int64_t total_steps;   /* warm-up included */
  double cycles;         /* 0.5 ends at 0 */
  double min_lr, max_lr; /* negative max_lr: base; of WarmupDecayLR 0.001 */
  double warmup_min_ratio, cos_min_ratio;
  acc_lr_function function; /* and its context, for ACC_LR_CUSTOM; both outlive the optimizer */
  void* context;
} acc_lr_schedule_config;
/* Constant, without warm-up; of each kind its own defaults. */
#define ACC_LR_SCHEDULE_CONFIG_INITIALIZER                                                        \
  {                                                                                               \
    sizeof(acc_lr_schedule_config), ACC_LR_CONSTANT, 0, -1, 0, 0.5, 0.0, -1.0, 0.0, 0.0001, NULL, \
        NULL                                                                                      \
  }
/* From now on every step takes its learning rates from the schedule; skipped steps do not count.
 * ACC_CONFIG for counts that the schedule cannot have. */
ACC_API acc_status acc_optimizer_set_schedule(acc_optimizer* optimizer,
                                              const acc_lr_schedule_config* config) ACC_NOEXCEPT;

/* Global norm to clip to; 0: no clipping. Without set_clip_norm the launcher's. */
ACC_API acc_status acc_optimizer_set_clip_norm(acc_optimizer* optimizer,
                                               double max_norm) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_clip_norm(const acc_optimizer* optimizer,
                                           double* max_norm) ACC_NOEXCEPT;
/* Clips each element of the mean gradient to [-max_value, max_value]; 0: no. Values come before the
 * norm. */
ACC_API acc_status acc_optimizer_set_clip_value(acc_optimizer* optimizer,
                                                double max_value) ACC_NOEXCEPT;
ACC_API acc_status acc_optimizer_clip_value(const acc_optimizer* optimizer,
                                            double* max_value) ACC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* ACC_RUNTIME_H */
