// For programs that call kernels under a sanitizer. The threads of OpenMP are ours, made of std::thread and a barrier that
// TSan knows: libgomp's own waiting it cannot follow.

#pragma once

#include <cstdio>
#include <memory>
#include <pthread.h>
#include <thread>
#include <vector>

namespace {
thread_local long thread_number = 0, thread_count = 1;
thread_local pthread_barrier_t* barrier = nullptr;
}  // namespace

extern "C" {

void GOMP_parallel(void (*work)(void*), void* data, unsigned threads, unsigned) {
  pthread_barrier_t shared;
  pthread_barrier_init(&shared, nullptr, threads);
  std::vector<std::thread> team;
  for (unsigned t = 0; t < threads; t++)
    team.emplace_back([=, &shared] {
      thread_number = t, thread_count = threads, barrier = &shared;
      work(data);
    });
  for (auto& member : team) member.join();
  pthread_barrier_destroy(&shared);
}

void GOMP_barrier() {
  if (barrier) pthread_barrier_wait(barrier);
}

int omp_get_thread_num() { return thread_number; }
int omp_get_num_threads() { return thread_count; }

}  // extern "C"

namespace {

struct Buffer {
  std::unique_ptr<float[]> numbers;
  long size;
  explicit Buffer(long size, float value = 0.0f) : numbers(new float[size]), size(size) {
    for (long n = 0; n < size; n++) numbers[n] = value;
  }
  float* at() { return numbers.get(); }
};

// Different numbers between -1 and 1, the same in every run.
Buffer random_numbers(long size) {
  static uint32_t state = 1;
  Buffer found(size);
  for (long n = 0; n < size; n++) {
    state = state * 1664525u + 1013904223u;
    found.numbers[n] = static_cast<float>(state >> 8) / (1 << 23) - 1.0f;
  }
  return found;
}

void require(bool truth, const char* what) {
  if (truth) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::exit(3);
}

}  // namespace
