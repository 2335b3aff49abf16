// Rows of numbers, one after the other in memory; see the Python files beside this one for what they mean.
//
// Every function takes each row through the cache once. Threads are those of torch's own OpenMP pool, each has a run of
// rows; sums over rows are one row per thread, which the caller adds up. Each returns 0.

#include <cmath>
#include <cstdint>
#include <omp.h>

namespace {

// Rows of the calling thread.
struct Mine {
  long first, end;
  explicit Mine(long rows) {
    const long me = omp_get_thread_num(), all = omp_get_num_threads();
    first = rows * me / all, end = rows * (me + 1) / all;
  }
};

}  // namespace

extern "C" {

// sum = x + drop(y), out = gamma * (sum - mean) * scale + beta, where a number is dropped if its lane is below `lowest`.
// No lanes, no dropout.
int dape_add_norm(
    long rows, long width, long threads, const float* x, const float* y, const int16_t* lanes, int lowest, float factor,
    const float* gamma, const float* beta, float eps, float* sum, float* mean, float* scale, float* out) {
#pragma omp parallel num_threads(threads)
  for (Mine mine(rows); mine.first < mine.end; mine.first++) {
    const long row = mine.first, at = row * width;
    float total = 0, squares = 0;
    if (lanes) {
#pragma omp simd reduction(+ : total)
      for (long i = 0; i < width; i++) {
        const float value = x[at + i] + (lanes[at + i] < lowest ? 0.0f : y[at + i] * factor);
        sum[at + i] = value, total += value;
      }
    } else {
#pragma omp simd reduction(+ : total)
      for (long i = 0; i < width; i++) {
        const float value = x[at + i] + y[at + i];
        sum[at + i] = value, total += value;
      }
    }
    const float middle = total / width;
#pragma omp simd reduction(+ : squares)
    for (long i = 0; i < width; i++) squares += (sum[at + i] - middle) * (sum[at + i] - middle);
    const float by = 1 / std::sqrt(squares / width + eps);
    mean[row] = middle, scale[row] = by;
#pragma omp simd
    for (long i = 0; i < width; i++) out[at + i] = gamma[i] * ((sum[at + i] - middle) * by) + beta[i];
  }
  return 0;
}

// d_gamma, d_beta: [threads, width], zero before.
int dape_add_norm_backward(
    long rows, long width, long threads, const float* d_out, const float* sum, const float* mean, const float* scale,
    const int16_t* lanes, int lowest, float factor, const float* gamma, float* d_x, float* d_y, float* d_gamma, float* d_beta) {
#pragma omp parallel num_threads(threads)
  {
    float* my_gamma = d_gamma + omp_get_thread_num() * width;
    float* my_beta = d_beta + omp_get_thread_num() * width;
    for (Mine mine(rows); mine.first < mine.end; mine.first++) {
      const long row = mine.first, at = row * width;
      const float middle = mean[row], by = scale[row];
      float total = 0, along = 0;
#pragma omp simd reduction(+ : total, along)
      for (long i = 0; i < width; i++) {
        const float unit = (sum[at + i] - middle) * by, d = d_out[at + i], inner = d * gamma[i];
        my_gamma[i] += d * unit, my_beta[i] += d;
        total += inner, along += inner * unit;
      }
      total /= width, along /= width;
#pragma omp simd
      for (long i = 0; i < width; i++) {
        const float unit = (sum[at + i] - middle) * by;
        d_x[at + i] = by * (d_out[at + i] * gamma[i] - total - unit * along);
      }
      if (lanes)
#pragma omp simd
        for (long i = 0; i < width; i++) d_y[at + i] = lanes[at + i] < lowest ? 0.0f : d_x[at + i] * factor;
    }
  }
  return 0;
}

// x = relu(x + bias); what is not a number stays so.
int dape_bias_relu(long rows, long width, long threads, float* x, const float* bias) {
#pragma omp parallel num_threads(threads)
  for (Mine mine(rows); mine.first < mine.end; mine.first++) {
    float* row = x + mine.first * width;
#pragma omp simd
    for (long i = 0; i < width; i++) {
      const float value = row[i] + bias[i];
      row[i] = value < 0 ? 0.0f : value;
    }
  }
  return 0;
}

// The gradient in place, from relu's output. d_bias: [threads, width], zero before.
int dape_bias_relu_backward(long rows, long width, long threads, float* d, const float* out, float* d_bias) {
#pragma omp parallel num_threads(threads)
  {
    float* sums = d_bias + omp_get_thread_num() * width;
    for (Mine mine(rows); mine.first < mine.end; mine.first++) {
      const long at = mine.first * width;
#pragma omp simd
      for (long i = 0; i < width; i++) {
        const float value = out[at + i] <= 0 ? 0.0f : d[at + i];
        d[at + i] = value, sums[i] += value;
      }
    }
  }
  return 0;
}

}  // extern "C"
