/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the C ABI that capi_test does not use: groups, schedules, clipping by value, no_sync,
 * buffers, saved activations, recomputation, callers of older headers, misuse. Runs with any number
 * of ranks and any gradient_accumulation_steps. Exits with 0, or prints the failed expectation. */

#include "acc/runtime.h"
#include "acc/runtime_checkpoint.h"
#include "capi_expect.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kWeights = 6, kBiases = 2 };

static int near(double found, double expected) {
  return fabs(found - expected) < 1e-6;
}

/* A model of one unit with weights 1 and biases 0. A step writes the gradients that it is given. */
typedef struct Program {
  acc_runtime* runtime;
  acc_model* model;
  acc_unit* unit;
  acc_parameter weight, bias;
  acc_buffer mask;
  acc_optimizer* optimizer;
} Program;

/* dimensions: of the weight. */
static Program create_with(acc_runtime* runtime, int by_rows, size_t dimensions) {
  Program p = {.runtime = runtime};
  acc_model_config config = ACC_MODEL_CONFIG_INITIALIZER;
  config.seed = 7;
  config.by_rows = by_rows;
  EXPECT_OK(acc_model_create_with(runtime, &config, &p.model));
  EXPECT_OK(acc_model_root(p.model, "linear", "Linear", &p.unit));
  acc_parameter_config ones = ACC_PARAMETER_CONFIG_INITIALIZER;
  ones.a = 1.0F;
  const int64_t shape[] = {kWeights, 1};
  EXPECT_OK(acc_unit_parameter(p.unit, "weight", shape, dimensions, &ones, &p.weight));
  EXPECT_OK(acc_unit_tie(p.unit, "head.weight", p.weight));
  const int64_t biases[] = {kBiases};
  EXPECT_OK(acc_unit_parameter(p.unit, "bias", biases, 1, NULL, &p.bias));
  ones.a = 3.0F;
  EXPECT_OK(acc_unit_buffer(p.unit, "mask", biases, 1, &ones, &p.mask));
  return p;
}

static Program create(acc_runtime* runtime) {
  return create_with(runtime, 0, 1);
}

static void destroy(Program* p) {
  acc_optimizer_free(p->optimizer);
  acc_model_free(p->model);
}

static void add(acc_backward_use* use, acc_parameter parameter, int count, float gradient) {
  float* data = NULL;
  float beta = -1.0F;
  EXPECT_OK(acc_backward_grad(use, parameter, &data, &beta));
  for (int i = 0; i < count; ++i) {
    data[i] = (beta == 0.0F ? 0.0F : data[i]) + gradient;
  }
}

static void micro_step(const Program* p, float gradient) {
  acc_forward_use* forward = NULL;
  EXPECT_OK(acc_forward_begin(p->unit, &forward));
  EXPECT_OK(acc_forward_end(forward));
  /* As in a program with activation checkpointing. */
  EXPECT_OK(acc_recompute_begin(p->unit, &forward));
  const float* weight = NULL;
  EXPECT_OK(acc_forward_parameter(forward, p->weight, &weight));
  EXPECT_OK(acc_forward_end(forward));
  acc_backward_use* backward = NULL;
  EXPECT_OK(acc_backward_begin(p->unit, &backward));
  add(backward, p->weight, kWeights, gradient);
  add(backward, p->bias, kBiases, gradient);
  EXPECT_OK(acc_backward_end(backward));
}

/* Runs the micro-steps, all except the last with no_sync if requested, and then the step. */
static acc_step_info step(const Program* p, float gradient, int no_sync) {
  const int micro_steps = acc_runtime_gradient_accumulation_steps(p->runtime);
  EXPECT_OK(acc_model_reset_traffic(p->model));
  for (int i = 0; i < micro_steps; ++i) {
    acc_no_sync* scope = NULL;
    if (no_sync && i + 1 < micro_steps) {
      EXPECT_OK(acc_no_sync_begin(p->model, &scope));
    }
    micro_step(p, gradient);
    if (scope != NULL) {
      acc_traffic_report traffic = ACC_TRAFFIC_REPORT_INITIALIZER;
      EXPECT_OK(acc_model_traffic(p->model, &traffic));
      EXPECT(traffic.reduce_calls == 0 && traffic.all_reduce_calls == 0);
    }
    acc_no_sync_end(scope);
  }
  double scale = 0.0;
  EXPECT_OK(acc_optimizer_loss_scale(p->optimizer, &scale));
  EXPECT(scale == 1.0);
  acc_step_info info = ACC_STEP_INFO_INITIALIZER;
  EXPECT_OK(acc_optimizer_step(p->optimizer, &info));
  EXPECT(info.loss_scale == 1.0 && info.skipped == 0 && info.skipped_steps == 0);
  /* A rank whose shard contains only padding has no tile. */
  EXPECT(info.tiles >= (acc_runtime_rank(p->runtime) == 0 ? 1 : 0));
  acc_traffic_report traffic = ACC_TRAFFIC_REPORT_INITIALIZER;
  traffic.secondary_elements = -1;
  EXPECT_OK(acc_model_traffic(p->model, &traffic));
  EXPECT(traffic.secondary_elements == 0);
  /* The struct of an older caller ends before this field. */
  traffic.size = offsetof(acc_traffic_report, secondary_elements);
  traffic.secondary_elements = -7;
  EXPECT_OK(acc_model_traffic(p->model, &traffic));
  EXPECT(traffic.secondary_elements == -7);
  return info;
}

static float value(const Program* p, acc_parameter parameter) {
  acc_no_grad* no_grad = NULL;
  EXPECT_OK(acc_no_grad_begin(p->model, &no_grad));
  acc_forward_use* use = NULL;
  EXPECT_OK(acc_forward_begin(p->unit, &use));
  const float* data = NULL;
  EXPECT_OK(acc_forward_parameter(use, parameter, &data));
  const float found = data[0];
  EXPECT_OK(acc_forward_end(use));
  acc_no_grad_end(no_grad);
  return found;
}

static void expect_groups(acc_runtime* runtime) {
  Program p = create(runtime);
  acc_sgd_config sgd = ACC_SGD_CONFIG_INITIALIZER;
  sgd.lr = 0.5;
  const char* names[] = {"linear.b*"};
  acc_parameter_group group = ACC_PARAMETER_GROUP_INITIALIZER;
  group.name = "slow";
  group.parameters = names;
  group.num_parameters = 1;
  group.lr = 0.125;
  EXPECT_OK(acc_optimizer_sgd_groups(p.model, &sgd, &group, 1, &p.optimizer));
  double lr = 0.0;
  EXPECT_OK(acc_optimizer_group_lr(p.optimizer, "slow", &lr));
  EXPECT(lr == 0.125);
  EXPECT(step(&p, 1.0F, 0).lr == 0.5);
  EXPECT(near(value(&p, p.weight), 0.5) && near(value(&p, p.bias), -0.125));
  EXPECT_OK(acc_optimizer_set_group_lr(p.optimizer, "slow", 0.25));
  EXPECT(step(&p, 1.0F, 1).step == 2);
  EXPECT(near(value(&p, p.weight), 0.0) && near(value(&p, p.bias), -0.375));
  EXPECT(acc_optimizer_group_lr(p.optimizer, "fast", &lr) != ACC_OK);
  EXPECT(strstr(acc_last_error(), "fast") != NULL);
  /* Each element of the mean gradient, 1, is clipped to 0.5. */
  EXPECT_OK(acc_optimizer_set_clip_value(p.optimizer, 0.5));
  double clip = 0.0;
  EXPECT_OK(acc_optimizer_clip_value(p.optimizer, &clip));
  EXPECT(clip == 0.5);
  step(&p, 1.0F, 0);
  EXPECT(near(value(&p, p.weight), -0.25));
  destroy(&p);
}

/* Lion moves each weight by lr against the sign of its gradient. */
static void expect_named(acc_runtime* runtime) {
  Program p = create(runtime);
  const char* names[] = {"lr", "beta2"};
  const double values[] = {0.25, 0.5};
  const struct {
    const char *name, *coefficient, *said;
  } refused[] = {{"lars", "lr", "no optimizer is named 'lars'"},
                 {"lion", "eps", "Lion has no coefficient 'eps'"},
                 {NULL, "lr", "name is NULL"},
                 {"lion", NULL, "names[] is NULL"}};
  for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
    EXPECT(acc_optimizer_named(p.model, refused[i].name, &refused[i].coefficient, values, 1, NULL,
                               0, &p.optimizer) == ACC_INVALID_ARGUMENT);
    EXPECT(strstr(acc_last_error(), refused[i].said) != NULL && p.optimizer == NULL);
  }
  EXPECT(acc_optimizer_named(p.model, "lion", names, NULL, 2, NULL, 0, &p.optimizer) ==
         ACC_INVALID_ARGUMENT);
  const char* biases[] = {"linear.bias"};
  acc_parameter_group group = ACC_PARAMETER_GROUP_INITIALIZER;
  group.name = "slow";
  group.parameters = biases;
  group.num_parameters = 1;
  group.lr = 0.125;
  EXPECT_OK(acc_optimizer_named(p.model, "lion", names, values, 2, &group, 1, &p.optimizer));
  EXPECT(step(&p, 3.0F, 0).lr == 0.25);
  EXPECT(near(value(&p, p.weight), 0.75) && near(value(&p, p.bias), -0.125));
  step(&p, -3.0F, 0); /* 0.9 of a momentum of 1.5 is more than a tenth of 3 */
  EXPECT(near(value(&p, p.weight), 0.5) && near(value(&p, p.bias), -0.25));
  destroy(&p);

  p = create(runtime);
  EXPECT_OK(acc_optimizer_named(p.model, "adamw", NULL, NULL, 0, NULL, 0, &p.optimizer));
  double lr = 0.0;
  EXPECT_OK(acc_optimizer_lr(p.optimizer, &lr));
  EXPECT(lr == 1e-3);
  const char* keys[] = {"total_steps", "lr_end"};
  const double ends[] = {10.0, 5e-4};
  EXPECT_OK(acc_optimizer_set_named_schedule(p.optimizer, "polynomial", keys, ends, 2));
  step(&p, 1.0F, 0);
  EXPECT_OK(acc_optimizer_lr(p.optimizer, &lr));
  EXPECT(lr > 9.499e-4 && lr < 9.501e-4);
  EXPECT(acc_optimizer_set_named_schedule(p.optimizer, "cubic", keys, ends, 2) ==
         ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "no schedule is named 'cubic'") != NULL);
  EXPECT(acc_optimizer_set_named_schedule(p.optimizer, "linear", keys, ends, 2) ==
         ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "lr_end is unknown") != NULL);
  destroy(&p);
}

/* The struct of an older header ends after lr; an array of them has no space for the new field. */
static void expect_old_groups(acc_runtime* runtime) {
  Program p = create(runtime);
  enum { kOldSize = offsetof(acc_parameter_group, weight_decay) };
  const char* names[] = {"linear.weight", "linear.bias"};
  _Alignas(acc_parameter_group) unsigned char old[2 * kOldSize];
  for (int i = 0; i < 2; ++i) {
    acc_parameter_group group = ACC_PARAMETER_GROUP_INITIALIZER;
    group.size = kOldSize;
    group.name = i == 0 ? "first" : "second";
    group.parameters = names + i;
    group.num_parameters = 1;
    group.lr = 0.25 * (i + 1);
    memcpy(old + i * kOldSize, &group, kOldSize);
  }
  EXPECT_OK(
      acc_optimizer_sgd_groups(p.model, NULL, (const acc_parameter_group*)old, 2, &p.optimizer));
  double lr = 0.0;
  EXPECT_OK(acc_optimizer_group_lr(p.optimizer, "second", &lr));
  EXPECT(lr == 0.5);
  destroy(&p);

  p = create(runtime);
  acc_parameter_group nothing = ACC_PARAMETER_GROUP_INITIALIZER;
  nothing.name = "none";
  nothing.parameters = names;
  EXPECT(acc_optimizer_adamw_groups(p.model, NULL, &nothing, 1, &p.optimizer) ==
         ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "none") != NULL);
  EXPECT(acc_optimizer_from_settings(p.model, &p.optimizer) == ACC_CONFIG);
  EXPECT(p.optimizer == NULL);
  destroy(&p);
}

static double halved(int64_t made, double base, void* context) {
  ++*(int*)context;
  return made < 1 ? base : base / 2;
}

static void expect_schedules(acc_runtime* runtime) {
  Program p = create(runtime);
  acc_sgd_config sgd = ACC_SGD_CONFIG_INITIALIZER;
  sgd.lr = 1.0;
  EXPECT_OK(acc_optimizer_sgd(p.model, &sgd, &p.optimizer));
  acc_lr_schedule_config schedule = ACC_LR_SCHEDULE_CONFIG_INITIALIZER;
  schedule.kind = ACC_LR_LINEAR;
  schedule.warmup_steps = 2;
  schedule.total_steps = 4;
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  const double expected[] = {0.0, 0.5, 1.0, 0.5};
  for (int i = 0; i < 4; ++i) {
    EXPECT(near(step(&p, 0.0F, 0).lr, expected[i]));
  }
  int asked = 0;
  schedule.kind = ACC_LR_CUSTOM;
  EXPECT(acc_optimizer_set_schedule(p.optimizer, &schedule) == ACC_INVALID_ARGUMENT);
  schedule.function = halved;
  schedule.context = &asked;
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  EXPECT(near(step(&p, 0.0F, 0).lr, 0.5) && asked > 0);
  for (int kind = ACC_LR_CONSTANT; kind < ACC_LR_CUSTOM; ++kind) {
    schedule.kind = kind;
    EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  }
  schedule.kind = ACC_LR_CUSTOM + 1;
  EXPECT(acc_optimizer_set_schedule(p.optimizer, &schedule) == ACC_INVALID_ARGUMENT);
  EXPECT(acc_optimizer_set_schedule(p.optimizer, NULL) == ACC_INVALID_ARGUMENT);
  /* The config of an older caller ends after the kind. */
  schedule.kind = ACC_LR_CONSTANT;
  schedule.size = offsetof(acc_lr_schedule_config, linear_warmup);
  schedule.warmup_steps = 1000;
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  EXPECT(step(&p, 0.0F, 0).lr == 1.0);
  EXPECT_OK(acc_optimizer_set_lr(p.optimizer, 0.75));
  /* The report of an older caller ends before the learning rate. */
  micro_step(&p, 0.0F);
  for (int i = 1; i < acc_runtime_gradient_accumulation_steps(runtime); ++i) {
    micro_step(&p, 0.0F);
  }
  acc_step_info info = ACC_STEP_INFO_INITIALIZER;
  info.size = offsetof(acc_step_info, lr);
  info.lr = -7.0;
  EXPECT_OK(acc_optimizer_step(p.optimizer, &info));
  EXPECT(info.step == 7 && info.lr == -7.0);
  destroy(&p);
}

/* Halves the gradient from the weights; notes how many elements the shards have. Fails if there are
 * no gradients. */
static int subtract_half(const acc_parameter_shard* shards, size_t count, void* context) {
  for (size_t i = 0; i < count; ++i) {
    if (shards[i].gradient == NULL) {
      return 1;
    }
    for (int64_t j = 0; j < shards[i].numel; ++j) {
      ((float*)shards[i].weights)[j] -= 0.5F * shards[i].gradient[j];
    }
    *(int64_t*)context += shards[i].numel;
  }
  return 0;
}

/* Momentum of 0.5 in the first state. */
static int subtract_velocity(const acc_parameter_shard* shards, size_t count, void* context) {
  (void)context;
  for (size_t i = 0; i < count; ++i) {
    if (shards[i].num_states != 1) {
      return 1;
    }
    for (int64_t j = 0; j < shards[i].numel; ++j) {
      float* const velocity = shards[i].states[0] + j;
      *velocity = 0.5F * *velocity + shards[i].gradient[j];
      ((float*)shards[i].weights)[j] -= 0.25F * *velocity;
    }
  }
  return 0;
}

/* Counts its steps in the state, and divides by them. */
static int by_steps(const acc_owned_matrix* matrix, void* context) {
  if (matrix->num_states != 1 || matrix->rows * matrix->columns != kWeights) {
    return 1;
  }
  *(int64_t*)context += 1;
  for (int64_t i = 0; i < matrix->rows; ++i) {
    matrix->states[0][i] += 1.0F;
    for (int64_t j = 0; j < matrix->columns; ++j) {
      matrix->values[i * matrix->columns + j] = matrix->states[0][i];
    }
  }
  return 0;
}

static int find_weight(const acc_parameter_shard* shards, size_t count, void* context) {
  EXPECT(count == 2 && strcmp(shards[0].name, "linear.weight") == 0);
  EXPECT(shards[0].dtype == ACC_FLOAT32 && shards[0].in_host_memory == 1);
  EXPECT(shards[0].weight_decay == 1 && shards[0].gradient == NULL);
  *(int*)context = shards[0].numel == 0 || ((const float*)shards[0].weights)[0] == 1.0F;
  return 0;
}

/* A function of the program that says how it ended, and returns what an unfinished one might. */
static double saying(int64_t made, double base, void* context) {
  (void)base;
  (void)context;
  if (made == 1) {
    acc_callback_returns("no rate", 0.0);
  } else if (made == 0) {
    acc_callback_returns("not yet", 0.0); /* the last call counts */
    acc_callback_returns(NULL, 0.25);
  }
  return 7.0;
}

static double silent(int64_t made, double base, void* context) {
  (void)made;
  (void)context;
  return base;
}

static double not_a_rate(int64_t made, double base, void* context) {
  (void)made;
  (void)base;
  return *(double*)context;
}

static void expect_failing_functions(acc_runtime* runtime) {
  Program p = create(runtime);
  EXPECT_OK(acc_optimizer_sgd(p.model, NULL, &p.optimizer));
  acc_lr_schedule_config schedule = ACC_LR_SCHEDULE_CONFIG_INITIALIZER;
  schedule.kind = ACC_LR_CUSTOM;
  double lr = -1.0;
  double bad[] = {NAN, INFINITY, -1.0};
  schedule.function = not_a_rate;
  for (int i = 0; i < 3; ++i) {
    schedule.context = &bad[i];
    EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
    EXPECT(acc_optimizer_lr(p.optimizer, &lr) == ACC_INVALID_ARGUMENT && lr == -1.0);
    EXPECT(acc_optimizer_set_lr(p.optimizer, bad[i]) == ACC_INVALID_ARGUMENT);
  }
  schedule.function = saying;
  schedule.context = NULL;
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  EXPECT(near(step(&p, 0.0F, 0).lr, 7.0)); /* without the context the result is the function's */
  EXPECT(acc_optimizer_lr(p.optimizer, &lr) == ACC_PROCESS);
  EXPECT(strcmp(acc_last_error(), "no rate") == 0);
  destroy(&p);
  p = create(runtime);
  EXPECT_OK(acc_optimizer_sgd(p.model, NULL, &p.optimizer));
  schedule.context = acc_callback_context();
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  EXPECT(near(step(&p, 0.0F, 0).lr, 0.25));
  EXPECT(acc_optimizer_lr(p.optimizer, &lr) == ACC_PROCESS);
  schedule.function = silent;
  EXPECT_OK(acc_optimizer_set_schedule(p.optimizer, &schedule));
  EXPECT(acc_optimizer_lr(p.optimizer, &lr) == ACC_PROCESS && lr == -1.0);
  EXPECT(acc_optimizer_set_rule_settings(p.optimizer, "a=1") == ACC_INVALID_ARGUMENT);
  destroy(&p);
}

/* Calls of a child, in an open scope of the parent. Returns the number of those that are refused.
 */
static int refused_calls(Program* p, acc_forward_use* use, acc_no_grad* scope) {
  const acc_status found[] = {
      acc_runtime_barrier(p->runtime),
      acc_runtime_mean(p->runtime, 1.0, &(double){0.0}),
      acc_runtime_abort(p->runtime, "by a child"),
      acc_runtime_report(p->runtime, NULL, NULL, 0),
      acc_model_create(p->runtime, 1, &(acc_model*){NULL}),
      acc_model_zero_grad(p->model),
      acc_forward_begin(p->unit, &(acc_forward_use*){NULL}),
      acc_forward_parameter(use, p->weight, &(const float*){NULL}),
      acc_forward_end(use),
      acc_backward_begin(p->unit, &(acc_backward_use*){NULL}),
      acc_unit_buffer_data(p->unit, p->mask, &(void*){NULL}),
      acc_optimizer_step(p->optimizer, NULL),
      acc_optimizer_set_lr(p->optimizer, 5.0),
      acc_runtime_save(p->runtime, "unused", p->model, p->optimizer, NULL, 0)};
  int refused = 0;
  for (size_t i = 0; i < sizeof found / sizeof *found; ++i) {
    refused += found[i] == ACC_INVALID_ARGUMENT ? 1 : 0;
  }
  refused += strstr(acc_last_error(), "a child that fork made") != NULL ? 1 : 0;
  acc_no_grad_end(scope);
  destroy(p);
  acc_runtime_free(p->runtime);
  return refused;
}

static void expect_children_without_a_part(acc_runtime* runtime) {
  Program p = create(runtime);
  EXPECT_OK(acc_optimizer_sgd(p.model, NULL, &p.optimizer));
  acc_no_grad* scope = NULL;
  EXPECT_OK(acc_no_grad_begin(p.model, &scope));
  acc_forward_use* use = NULL;
  EXPECT_OK(acc_forward_begin(p.unit, &use));
  const pid_t child = fork();
  if (child == 0) {
    exit(refused_calls(&p, use, scope)); /* with all functions that run at the end of a process */
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 15);
  EXPECT_OK(acc_forward_end(use));
  acc_no_grad_end(scope);
  EXPECT(step(&p, 1.0F, 0).step == 1);
  EXPECT_OK(acc_runtime_barrier(runtime));
  destroy(&p);
}

static void expect_program_rule(acc_runtime* runtime) {
  Program p = create(runtime);
  int64_t updated = 0;
  EXPECT(acc_optimizer_program(p.model, NULL, NULL, &p.optimizer) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_optimizer_program(p.model, subtract_half, &updated, &p.optimizer));
  int found = 0;
  EXPECT_OK(acc_optimizer_shards(p.optimizer, find_weight, &found));
  EXPECT(found == 1);
  EXPECT(acc_optimizer_shards(p.optimizer, subtract_half, &updated) == ACC_PROCESS);
  EXPECT(acc_optimizer_set_lr(p.optimizer, 0.1) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_optimizer_set_clip_value(p.optimizer, 0.5));
  for (int i = 0; i < acc_runtime_gradient_accumulation_steps(runtime); ++i) {
    micro_step(&p, 1.0F);
  }
  acc_step_info info = ACC_STEP_INFO_INITIALIZER;
  EXPECT_OK(acc_optimizer_step(p.optimizer, &info));
  EXPECT(info.step == 1 && (updated > 0 || acc_runtime_rank(runtime) != 0));
  EXPECT(near(value(&p, p.weight), 0.75) && near(value(&p, p.bias), -0.25));
  destroy(&p);
}

static acc_step_info two_steps(Program* p) {
  acc_step_info info = ACC_STEP_INFO_INITIALIZER;
  for (int made = 0; made < 2; ++made) {
    for (int i = 0; i < acc_runtime_gradient_accumulation_steps(p->runtime); ++i) {
      micro_step(p, 1.0F);
    }
    EXPECT_OK(acc_optimizer_step(p->optimizer, &info));
  }
  return info;
}

static void expect_states_of_program_rules(acc_runtime* runtime) {
  Program p = create(runtime);
  const char* states[] = {"velocity", "step"};
  EXPECT(acc_optimizer_program_states(p.model, subtract_velocity, NULL, states, 2, &p.optimizer) ==
         ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "names the state 'step'") != NULL);
  EXPECT_OK(
      acc_optimizer_program_states(p.model, subtract_velocity, NULL, states, 1, &p.optimizer));
  const float first = value(&p, p.weight);
  EXPECT(two_steps(&p).step == 2);
  EXPECT(near(value(&p, p.weight), first - 0.25F * 1.0F - 0.25F * 1.5F));
  destroy(&p);
}

static void expect_matrix_rule(acc_runtime* runtime) {
  Program p = create_with(runtime, 0, 2);
  const char* states[] = {"count"};
  const char* names[] = {"lr", "weight_decay"};
  const double values[] = {0.125, 0.0};
  int shape = 7;
  int64_t calls = 0;
  EXPECT(acc_optimizer_matrices(p.model, by_steps, &calls, states, &shape, 1, "adamw", names,
                                values, 2, NULL, 0, &p.optimizer) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "shapes[0]") != NULL);
  shape = ACC_MATRIX_STATE_ROWS;
  EXPECT(acc_optimizer_matrices(p.model, by_steps, &calls, states, &shape, 1, "lamb", names, values,
                                2, NULL, 0, &p.optimizer) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_optimizer_matrices(p.model, by_steps, &calls, states, &shape, 1, "adamw", names,
                                   values, 2, NULL, 0, &p.optimizer));
  const float first = value(&p, p.weight);
  EXPECT(two_steps(&p).step == 2);
  EXPECT(near(value(&p, p.weight), first - 0.125F * (1.0F + 2.0F)));
  EXPECT(calls == 0 || calls == 2);
  destroy(&p);
}

/* Notes the number of elements. Fails unless rows begin and end as those of torch.chunk do. */
static int check_rows(const acc_parameter_shard* shards, size_t count, void* context) {
  acc_runtime* const runtime = ((Program*)context)->runtime;
  const int64_t ranks = acc_runtime_world_size(runtime);
  for (size_t i = 0; i < count; ++i) {
    const int64_t rows = strcmp(shards[i].name, "linear.weight") == 0 ? kWeights : kBiases;
    const int64_t chunk = (rows + ranks - 1) / ranks;
    const int64_t first = chunk * acc_runtime_rank(runtime);
    const int64_t own = first >= rows ? 0 : first + chunk > rows ? rows - first : chunk;
    const int is_whole = shards[i].numel == rows; /* strategies that do not shard the optimizer */
    if (!is_whole && (shards[i].numel != own || (own > 0 && shards[i].offset != first))) {
      return 1;
    }
  }
  return count == 2 ? 0 : 1;
}

/* A program that updates shards of rows itself, with more micro-steps than the settings say. */
static void expect_rows(acc_runtime* runtime) {
  Program p = create_with(runtime, 1, 1);
  EXPECT(acc_model_shards(p.model, NULL, NULL) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_model_shards(p.model, check_rows, &p));
  for (int i = 0; i < 2; ++i) {
    acc_no_sync* scope = NULL;
    EXPECT_OK(acc_no_sync_begin(p.model, &scope));
    micro_step(&p, 1.0F);
    acc_no_sync_end(scope);
    micro_step(&p, 1.0F);
    int64_t updated = 0;
    EXPECT(acc_model_take_gradients(p.model, NULL, NULL, NULL) == ACC_INVALID_ARGUMENT);
    acc_gradients* kept = NULL;
    EXPECT_OK(acc_model_take_gradients(p.model, subtract_half, &updated, i == 0 ? &kept : NULL));
    acc_gradients_free(kept);
    EXPECT_OK(acc_model_publish(p.model));
  }
  EXPECT(near(value(&p, p.weight), -1.0) && near(value(&p, p.bias), -2.0));
  acc_forward_use* forward = NULL;
  EXPECT_OK(acc_forward_begin(p.unit, &forward));
  EXPECT(acc_model_publish(p.model) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_forward_end(forward));
  EXPECT_OK(acc_runtime_barrier(runtime));
  destroy(&p);
}

/* Gradients that are dropped, a step after one micro-step, and a frozen parameter. */
static void expect_unwanted_gradients(acc_runtime* runtime) {
  Program p = create(runtime);
  acc_sgd_config config = ACC_SGD_CONFIG_INITIALIZER;
  config.lr = 0.5;
  EXPECT_OK(acc_optimizer_sgd(p.model, &config, &p.optimizer));
  for (int i = 0; i < acc_runtime_gradient_accumulation_steps(runtime); ++i) {
    micro_step(&p, 8.0F);
  }
  acc_forward_use* forward = NULL;
  EXPECT(acc_forward_begin(p.unit, &forward) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "unit 'linear' begins micro-step ") != NULL);
  EXPECT_OK(acc_model_zero_grad(p.model));
  micro_step(&p, 1.0F);
  EXPECT_OK(acc_optimizer_step(p.optimizer, NULL));
  EXPECT(near(value(&p, p.weight), 0.5));

  EXPECT_OK(acc_unit_set_requires_grad(p.unit, p.bias, 0));
  micro_step(&p, 0.0F);
  EXPECT_OK(acc_optimizer_step(p.optimizer, NULL)); /* plain SGD leaves it as it is */
  EXPECT_OK(acc_forward_begin(p.unit, &forward));
  EXPECT(acc_model_zero_grad(p.model) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "zero_grad() inside an open scope of unit 'linear'") != NULL);
  EXPECT_OK(acc_forward_end(forward));
  destroy(&p);

  p = (Program){.runtime = runtime};
  EXPECT_OK(acc_model_create(runtime, 0, &p.model));
  EXPECT_OK(acc_model_unit(p.model, "linear", "Linear", &p.unit));
  acc_parameter_config frozen = ACC_PARAMETER_CONFIG_INITIALIZER;
  frozen.trainable = 0;
  EXPECT_OK(acc_unit_parameter(p.unit, "weight", NULL, 0, &frozen, &p.weight));
  EXPECT(acc_unit_set_requires_grad(p.unit, p.weight, 1) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "'linear.weight' cannot require a gradient") != NULL);
  destroy(&p);
}

static void expect_buffers_and_kept(acc_runtime* runtime) {
  Program p = create(runtime);
  EXPECT_OK(acc_optimizer_adamw(p.model, NULL, &p.optimizer));
  acc_dtype dtype = ACC_FLOAT16;
  EXPECT_OK(acc_model_buffer_dtype(p.model, &dtype));
  EXPECT(dtype == ACC_FLOAT32);
  void* data = NULL;
  EXPECT_OK(acc_unit_buffer_data(p.unit, p.mask, &data));
  float* mask = data;
  EXPECT(mask[0] == 3.0F && mask[kBiases - 1] == 3.0F);
  mask[0] = 4.0F;
  EXPECT_OK(acc_unit_buffer_data(p.unit, p.mask, &data));
  EXPECT(((const float*)data)[0] == 4.0F);
  acc_memory_report report = ACC_MEMORY_REPORT_INITIALIZER;
  EXPECT_OK(acc_model_memory(p.model, &report));
  EXPECT(report.buffer_bytes > 0 && report.parameter_bytes > 0);
  const acc_buffer unknown = {99, p.mask.unit};
  EXPECT(acc_unit_buffer_data(p.unit, unknown, &data) == ACC_INVALID_ARGUMENT);

  EXPECT(acc_runtime_activation_checkpointing(runtime) == 0);
  EXPECT(acc_runtime_activation_checkpointing(NULL) == -1);
  float values[] = {1.0F, 2.0F, 3.0F};
  acc_saved_activation* saved = NULL;
  EXPECT_OK(acc_runtime_keep(runtime, values, sizeof values, &saved));
  values[1] = 0.0F;
  EXPECT_OK(acc_saved_activation_prefetch(saved));
  const void* kept = NULL;
  EXPECT_OK(acc_saved_activation_restore(saved, &kept));
  EXPECT(((const float*)kept)[1] == 2.0F);
  acc_saved_activation_free(saved);
  acc_saved_activation_free(NULL);
  EXPECT(acc_runtime_keep(runtime, NULL, 4, &saved) == ACC_INVALID_ARGUMENT);
  EXPECT(acc_saved_activation_restore(NULL, &kept) == ACC_INVALID_ARGUMENT);
  destroy(&p);
}

static void count_int64(const acc_full_tensor* tensor, void* context) {
  if (tensor->dtype == ACC_INT64 && tensor->num_dims == 0 &&
      *(const int64_t*)tensor->data == INT64_MAX) {
    ++*(int*)context;
  }
}

/* A buffer with a dtype of its own and a second name, one without elements, and values that the
 * program holds. */
static void expect_dtypes_of_buffers(acc_runtime* runtime) {
  acc_model* model = NULL;
  acc_unit* unit = NULL;
  acc_parameter weight;
  EXPECT_OK(acc_model_create(runtime, 3, &model));
  EXPECT_OK(acc_model_root(model, "", "Net", &unit));
  acc_parameter_config config = ACC_PARAMETER_CONFIG_INITIALIZER;
  EXPECT_OK(acc_unit_parameter(unit, "weight", NULL, 0, &config, &weight));
  config.a = 5.0F;
  config.buffer_dtype = ACC_INT64;
  acc_buffer seen, empty;
  const int64_t none[] = {0};
  EXPECT_OK(acc_unit_buffer(unit, "seen", NULL, 0, &config, &seen));
  EXPECT_OK(acc_unit_buffer(unit, "empty", none, 1, &config, &empty));
  EXPECT_OK(acc_unit_tie_buffer(unit, "again", seen));
  EXPECT(acc_unit_tie_buffer(unit, NULL, seen) == ACC_INVALID_ARGUMENT);
  for (config.buffer_dtype = 4; config.buffer_dtype <= 99; config.buffer_dtype += 95) {
    EXPECT(acc_unit_buffer(unit, "wrong", NULL, 0, &config, &empty) == ACC_INVALID_ARGUMENT);
    EXPECT(strstr(acc_last_error(), "config.buffer_dtype") != NULL);
  }
  void* data = NULL;
  EXPECT_OK(acc_unit_buffer_data(unit, seen, &data));
  EXPECT(*(int64_t*)data == 5);
  *(int64_t*)data = INT64_MAX;
  int found = 0;
  acc_state_dict_config all = ACC_STATE_DICT_CONFIG_INITIALIZER;
  all.rank0_only = 0;
  EXPECT_OK(acc_model_state_dict(model, &all, count_int64, &found));
  EXPECT(found == 2);
  int64_t own = 7;
  EXPECT_OK(acc_model_share(model, "table", &own, sizeof own));
  EXPECT(own == 7);
  EXPECT_OK(acc_model_share(model, "table", NULL, 0));
  EXPECT(acc_model_share(model, "table", NULL, 8) == ACC_INVALID_ARGUMENT);
  acc_model_free(model);
}

static void expect_models(acc_runtime* runtime) {
  acc_model* model = NULL;
  acc_model_config config = ACC_MODEL_CONFIG_INITIALIZER;
  config.dtype = 17;
  EXPECT(acc_model_create_with(runtime, &config, &model) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "17") != NULL && model == NULL);
  config.size = offsetof(acc_model_config, dtype); /* size in an older header */
  EXPECT_OK(acc_model_create_with(runtime, &config, &model));
  acc_model_free(model);
  EXPECT_OK(acc_model_create_with(runtime, NULL, &model));
  acc_model_free(model);
}

static void count_up(uint64_t stream, int64_t offset, float* out, size_t count, void* context) {
  (void)stream;
  for (size_t i = 0; i < count; ++i) {
    out[i] = (float)(offset + (int64_t)i);
  }
  *(size_t*)context += count;
}

/* A pure initialiser creates on each rank only its shard; a custom one creates all on rank 0. */
static void expect_initializers(acc_runtime* runtime) {
  enum { kNumel = 64 };
  const int64_t shape[] = {kNumel};
  const size_t world = (size_t)acc_runtime_world_size(runtime);
  for (int kind = ACC_INITIALIZER_CUSTOM; kind <= ACC_INITIALIZER_PURE_ONCE; ++kind) {
    Program p = {.runtime = runtime};
    size_t made = 0;
    EXPECT_OK(acc_model_create(runtime, 1, &p.model));
    EXPECT_OK(acc_model_unit(p.model, "layer", "Layer", &p.unit));
    acc_parameter_config config = ACC_PARAMETER_CONFIG_INITIALIZER;
    config.initializer = kind;
    EXPECT(acc_unit_parameter(p.unit, "weight", shape, 1, &config, &p.weight) ==
           ACC_INVALID_ARGUMENT);
    config.fill = count_up;
    config.context = &made;
    EXPECT_OK(acc_unit_parameter(p.unit, "weight", shape, 1, &config, &p.weight));
    EXPECT(value(&p, p.weight) == 0.0F);
    if (kind >= ACC_INITIALIZER_PURE) {
      EXPECT(made * world == kNumel);
    } else {
      EXPECT(made == (acc_runtime_rank(runtime) == 0 ? kNumel : 0));
    }
    destroy(&p);
  }
}

/* Without a wrap policy the program's candidates become units, and each of them is sharded. */
static void expect_wrap(acc_runtime* runtime) {
  const char* names[] = {"", "layers", "layers.0", "layers.1"};
  const char* weights[] = {"layers.0.weight", "layers.1.weight"};
  const int64_t numels[] = {kWeights, kWeights};
  acc_module modules[4];
  for (int i = 0; i < 4; ++i) {
    modules[i] = (acc_module)ACC_MODULE_INITIALIZER;
    modules[i].name = names[i];
    modules[i].class_name = i < 2 ? "ModuleList" : "Layer";
    modules[i].is_candidate = i == 2;
    if (i >= 2) {
      modules[i].parameters = weights + i - 2;
      modules[i].numels = numels;
      modules[i].num_parameters = 1;
    }
  }
  int32_t chosen[4] = {7, 7, 7, 7};
  EXPECT_OK(acc_runtime_wrap(runtime, modules, 4, chosen));
  EXPECT(chosen[0] == 0 && chosen[1] == 0 && chosen[2] == 1 && chosen[3] == 0);
  modules[3].parameters = NULL;
  EXPECT(acc_runtime_wrap(runtime, modules, 4, chosen) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "module.parameters") != NULL);

  acc_model_config config = ACC_MODEL_CONFIG_INITIALIZER;
  config.dtype = ACC_FLOAT16;
  config.float16_on_cpu = 1;
  config.units_as_declared = 1;
  config.float32_buffers = 1;
  Program p = {.runtime = runtime};
  EXPECT_OK(acc_model_create_with(runtime, &config, &p.model));
  acc_dtype dtype = ACC_BFLOAT16;
  EXPECT_OK(acc_model_compute_dtype(p.model, &dtype));
  EXPECT(dtype == ACC_FLOAT16);
  EXPECT_OK(acc_model_buffer_dtype(p.model, &dtype));
  EXPECT(dtype == ACC_FLOAT32);
  EXPECT_OK(acc_model_unit(p.model, "layers.0", "Layer", &p.unit));
  const int64_t shape[] = {kWeights};
  acc_parameter_config ones = ACC_PARAMETER_CONFIG_INITIALIZER;
  ones.a = 1.0F;
  EXPECT_OK(acc_unit_parameter(p.unit, "weight", shape, 1, &ones, &p.weight));
  int keeps = -1;
  EXPECT(acc_unit_keeps_addresses(p.unit, NULL) == ACC_INVALID_ARGUMENT);
  EXPECT_OK(acc_unit_keeps_addresses(p.unit, &keeps));
  EXPECT(keeps == 1);
  const void* data[2] = {NULL, NULL};
  for (int i = 0; i < 2; ++i) {
    acc_no_grad* no_grad = NULL;
    acc_forward_use* use = NULL;
    EXPECT_OK(acc_no_grad_begin(p.model, &no_grad));
    EXPECT_OK(acc_forward_begin(p.unit, &use));
    EXPECT_OK(acc_forward_raw(use, p.weight, &data[i]));
    EXPECT(*(const uint16_t*)data[i] == 0x3c00); /* 1 in float16 */
    EXPECT_OK(acc_forward_end(use));
    acc_no_grad_end(no_grad);
  }
  EXPECT(data[0] == data[1]);
  destroy(&p);
}

/* What cannot be shown is refused. */
static void expect_report(acc_runtime* runtime) {
  const char* const names[] = {"loss", "accuracy", ""};
  const double values[] = {2.5, NAN, 1.0};
  EXPECT_OK(acc_runtime_report(runtime, NULL, NULL, 0));
  EXPECT_OK(acc_runtime_report(runtime, names, values, 2));
  EXPECT(acc_runtime_report(runtime, names, values, 3) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "left out") != NULL);
  EXPECT(acc_runtime_report(runtime, names, NULL, 1) == ACC_INVALID_ARGUMENT);
  EXPECT(acc_runtime_report(NULL, names, values, 1) == ACC_INVALID_ARGUMENT);
}

/* The reason reaches every rank. */
static void expect_abort(void) {
  acc_runtime* runtime = NULL;
  EXPECT_OK(acc_runtime_from_environment(&runtime));
  expect_report(runtime);
  EXPECT(acc_runtime_abort(runtime, NULL) == ACC_INVALID_ARGUMENT);
  if (acc_runtime_rank(runtime) == 0) {
    EXPECT_OK(acc_runtime_abort(runtime, "the data have ended"));
  }
  if (acc_runtime_world_size(runtime) > 1) {
    EXPECT(acc_runtime_barrier(runtime) == ACC_PEER_LOST);
    EXPECT(strstr(acc_last_error(), "the data have ended") != NULL);
  }
  acc_runtime_free(runtime);
}

/* Micro-steps without gradients, which an option allows. */
static void empty_micro_steps(const Program* p) {
  for (int i = 0; i < acc_runtime_gradient_accumulation_steps(p->runtime); ++i) {
    acc_forward_use* forward = NULL;
    EXPECT_OK(acc_forward_begin(p->unit, &forward));
    EXPECT_OK(acc_forward_end(forward));
    acc_backward_use* backward = NULL;
    EXPECT_OK(acc_backward_begin(p->unit, &backward));
    EXPECT_OK(acc_backward_end(backward));
  }
}

/* Handles of another model and of a use that has ended, and a step without gradients. The last one
 * ends the groups, so this test runs last. */
static void expect_misuse(acc_runtime* runtime) {
  Program p = create(runtime);
  Program other = create(runtime);
  EXPECT_OK(acc_optimizer_sgd(p.model, NULL, &p.optimizer));
  acc_forward_use* use = NULL;
  EXPECT_OK(acc_forward_begin(p.unit, &use));
  const float* data = NULL;
  EXPECT(acc_forward_parameter(use, other.weight, &data) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "'linear.weight' belongs to unit 'linear' of another model") !=
         NULL);
  EXPECT(data == NULL);
  EXPECT_OK(acc_forward_end(use));
  EXPECT(acc_forward_parameter(use, p.weight, &data) == ACC_INVALID_ARGUMENT && data == NULL);
  EXPECT(strstr(acc_last_error(), "has ended") != NULL);
  EXPECT(acc_forward_end(use) == ACC_INVALID_ARGUMENT);
  acc_backward_use* backward = NULL;
  EXPECT_OK(acc_backward_begin(p.unit, &backward));
  float* gradient = NULL;
  EXPECT(acc_backward_grad_to_add(backward, other.bias, &gradient) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "'linear.bias'") != NULL && gradient == NULL);
  add(backward, p.weight, kWeights, 1.0F);
  EXPECT_OK(acc_backward_end(backward));
  void* values = NULL;
  EXPECT(acc_unit_buffer_data(p.unit, other.mask, &values) == ACC_INVALID_ARGUMENT);
  EXPECT(strstr(acc_last_error(), "'linear.mask'") != NULL);
  EXPECT_OK(acc_optimizer_step(p.optimizer, NULL));
  destroy(&other);
  destroy(&p);

  acc_model_config config = ACC_MODEL_CONFIG_INITIALIZER;
  for (int allowed = 1; allowed >= 0; --allowed) {
    p = (Program){.runtime = runtime};
    config.unused_units = allowed;
    EXPECT_OK(acc_model_create_with(runtime, &config, &p.model));
    EXPECT_OK(acc_model_unit(p.model, "linear", "Linear", &p.unit));
    const int64_t shape[] = {kWeights};
    EXPECT_OK(acc_unit_parameter(p.unit, "weight", shape, 1, NULL, &p.weight));
    EXPECT_OK(acc_optimizer_sgd(p.model, NULL, &p.optimizer));
    empty_micro_steps(&p);
    EXPECT_OK(acc_runtime_barrier(runtime)); /* else a rank may get the error before its own step */
    if (allowed) {
      EXPECT_OK(acc_optimizer_step(p.optimizer, NULL));
    } else {
      EXPECT(acc_optimizer_step(p.optimizer, NULL) == ACC_INVALID_ARGUMENT);
      EXPECT(strstr(acc_last_error(), "backward scopes of unit 'linear' asked for no gradient"));
      EXPECT(acc_last_error_rank() == acc_runtime_rank(runtime));
    }
    destroy(&p);
  }
}

int main(void) {
  acc_runtime* runtime = NULL;
  EXPECT_OK(acc_runtime_from_environment(&runtime));
  EXPECT(acc_runtime_local_rank(runtime) >= 0);
  expect_models(runtime);
  expect_wrap(runtime);
  expect_initializers(runtime);
  expect_groups(runtime);
  expect_named(runtime);
  expect_old_groups(runtime);
  expect_schedules(runtime);
  expect_failing_functions(runtime);
  expect_children_without_a_part(runtime);
  expect_program_rule(runtime);
  expect_states_of_program_rules(runtime);
  expect_matrix_rule(runtime);
  expect_rows(runtime);
  expect_unwanted_gradients(runtime);
  expect_buffers_and_kept(runtime);
  expect_dtypes_of_buffers(runtime);
  expect_misuse(runtime);
  acc_runtime_free(runtime);
  expect_abort();
  return 0;
}
