/* SPDX-License-Identifier: Apache-2.0 */
/* mlp: a network with one hidden layer, in plain C, that learns sin(x). Each rank trains on its own
 * points. The launcher's settings define how the parameters are sharded:
 *
 *   acclaunch --cpu --num_processes 2 --use_fsdp mlp [FOLDER]
 *
 * With a folder it saves checkpoints there and, when started again, resumes from the newest one.
 */
#include <acc/runtime_checkpoint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { kPoints = 64, kHidden = 32, kSteps = 1500, kSaveEvery = 500 };

/* Ends the program if a call failed: prints the error, and exits with its exit status. */
static void check(acc_status status) {
  if (status != ACC_OK) {
    fprintf(stderr, "mlp: %s: %s\n", acc_status_name(status), acc_last_error());
    exit(acc_exit_status(status));
  }
}

/* y = x w + b; x: [kPoints, in], w: [in, out], b: [out] */
typedef struct Layer {
  acc_unit* unit;
  acc_parameter w, b;
  int in, out;
} Layer;

static Layer make_layer(acc_model* model, const char* name, int in, int out) {
  Layer layer = {.in = in, .out = out};
  check(acc_model_unit(model, name, "Linear", &layer.unit));
  acc_parameter_config weight = ACC_PARAMETER_CONFIG_INITIALIZER;
  weight.initializer = ACC_INITIALIZER_NORMAL;
  weight.a = 1.0F / sqrtf((float)in);
  const int64_t matrix[] = {in, out};
  check(acc_unit_parameter(layer.unit, "w", matrix, 2, &weight, &layer.w));
  acc_parameter_config bias = ACC_PARAMETER_CONFIG_INITIALIZER;
  bias.initializer = ACC_INITIALIZER_UNIFORM;
  bias.a = -1.0F;
  bias.b = 1.0F;
  bias.weight_decay = 0;
  const int64_t vector[] = {out};
  check(acc_unit_parameter(layer.unit, "b", vector, 1, &bias, &layer.b));
  return layer;
}

static void forward(const Layer* layer, const float* x, float* y) {
  acc_forward_use* use = NULL;
  const float* w = NULL;
  const float* b = NULL;
  check(acc_forward_begin(layer->unit, &use));
  check(acc_forward_parameter(use, layer->w, &w));
  check(acc_forward_parameter(use, layer->b, &b));
  for (int point = 0; point < kPoints; ++point) {
    for (int o = 0; o < layer->out; ++o) {
      float sum = b[o];
      for (int i = 0; i < layer->in; ++i) {
        sum += x[point * layer->in + i] * w[i * layer->out + o];
      }
      y[point * layer->out + o] = sum;
    }
  }
  check(acc_forward_end(use));
}

/* Adds the gradients of w and b that follow from dy, the gradient of y. dx: gradient of x, or
 * NULL. */
static void backward(const Layer* layer, const float* x, const float* dy, float* dx) {
  acc_backward_use* use = NULL;
  const float* w = NULL;
  float* dw = NULL;
  float* db = NULL;
  check(acc_backward_begin(layer->unit, &use));
  check(acc_backward_parameter(use, layer->w, &w));
  check(acc_backward_grad_to_add(use, layer->w, &dw));
  check(acc_backward_grad_to_add(use, layer->b, &db));
  for (int point = 0; point < kPoints; ++point) {
    for (int o = 0; o < layer->out; ++o) {
      db[o] += dy[point * layer->out + o];
    }
    for (int i = 0; i < layer->in; ++i) {
      float sum = 0.0F;
      for (int o = 0; o < layer->out; ++o) {
        dw[i * layer->out + o] += x[point * layer->in + i] * dy[point * layer->out + o];
        sum += w[i * layer->out + o] * dy[point * layer->out + o];
      }
      if (dx != NULL) {
        dx[point * layer->in + i] = sum;
      }
    }
  }
  check(acc_backward_end(use));
}

/* Runs forward and backward over this rank's points. Returns the mean squared error. */
static double train(const Layer* first, const Layer* second, const float* x) {
  static float hidden[kPoints * kHidden], d_hidden[kPoints * kHidden];
  static float y[kPoints], dy[kPoints];
  forward(first, x, hidden);
  for (int k = 0; k < kPoints * kHidden; ++k) {
    hidden[k] = tanhf(hidden[k]);
  }
  forward(second, hidden, y);
  double loss = 0.0;
  for (int point = 0; point < kPoints; ++point) {
    const float difference = y[point] - sinf(x[point]);
    loss += (double)(difference * difference) / kPoints;
    dy[point] = 2.0F * difference / kPoints;
  }
  backward(second, hidden, dy, d_hidden);
  for (int k = 0; k < kPoints * kHidden; ++k) {
    d_hidden[k] *= 1.0F - hidden[k] * hidden[k];
  }
  backward(first, x, d_hidden, NULL);
  return loss;
}

/* Loads the newest checkpoint, if there is one. Returns the number of steps already made. */
static int64_t resume(acc_runtime* runtime, acc_checkpoint_series* series, acc_model* model,
                      acc_optimizer* optimizer) {
  char path[4096];
  int64_t steps = 0;
  const acc_status found = acc_checkpoint_series_newest(series, path, sizeof path);
  if (found != ACC_NOT_FOUND) {
    check(found);
    check(acc_runtime_load(runtime, path, model, optimizer, NULL));
    check(acc_optimizer_steps(optimizer, &steps));
  }
  return steps;
}

int main(int argc, char** argv) {
  acc_runtime* runtime = NULL;
  acc_model* model = NULL;
  check(acc_runtime_from_environment(&runtime));
  check(acc_model_create(runtime, 1, &model));
  const Layer first = make_layer(model, "first", 1, kHidden);
  const Layer second = make_layer(model, "second", kHidden, 1);

  acc_optimizer* optimizer = NULL;
  acc_adamw_config adamw = ACC_ADAMW_CONFIG_INITIALIZER;
  adamw.lr = 0.02;
  adamw.weight_decay = 1e-4;
  check(acc_optimizer_adamw(model, &adamw, &optimizer));
  acc_lr_schedule_config schedule = ACC_LR_SCHEDULE_CONFIG_INITIALIZER;
  schedule.kind = ACC_LR_COSINE;
  schedule.total_steps = kSteps;
  check(acc_optimizer_set_schedule(optimizer, &schedule));

  const int rank = acc_runtime_rank(runtime);
  const int points = kPoints * acc_runtime_world_size(runtime);
  const int micro_steps = acc_runtime_gradient_accumulation_steps(runtime);
  float x[kPoints];
  for (int i = 0; i < kPoints; ++i) { /* points in [-3, 3], divided among the ranks */
    x[i] = 6.0F * ((float)(rank * kPoints + i) + 0.5F) / (float)points - 3.0F;
  }
  acc_checkpoint_series* series = NULL;
  int64_t step = 0;
  if (argc > 1) {
    acc_checkpoint_series_config config = ACC_CHECKPOINT_SERIES_CONFIG_INITIALIZER;
    config.total_limit = 2;
    check(acc_checkpoint_series_create(runtime, argv[1], &config, &series));
    step = resume(runtime, series, model, optimizer);
  }
  double loss = 0.0;
  while (step < kSteps) {
    for (int micro_step = 0; micro_step < micro_steps; ++micro_step) {
      loss = train(&first, &second, x);
    }
    check(acc_optimizer_step(optimizer, NULL));
    const char* const name = "loss"; /* of this rank */
    check(acc_runtime_report(runtime, &name, &loss, 1));
    if (++step % kSaveEvery == 0 && series != NULL) {
      check(acc_checkpoint_series_save(series, model, optimizer, NULL, 0));
    }
  }
  check(acc_runtime_mean(runtime, loss, &loss));
  if (rank == 0) {
    printf("mean squared error %.6f\n", loss);
  }
  acc_checkpoint_series_free(series);
  acc_optimizer_free(optimizer);
  acc_model_free(model);
  acc_runtime_free(runtime);
  return loss < 1e-3 ? 0 : 1;
}
